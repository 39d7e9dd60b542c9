"""One module for each command, and what some of them print."""
