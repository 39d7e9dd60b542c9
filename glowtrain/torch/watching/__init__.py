"""Whether what a compiled step works on is still what it was."""
