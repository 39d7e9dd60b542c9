"""Many cores for one step: how many there are, the pool of threads, and the text of what is shared out."""
