"""Control flow: Scan."""
