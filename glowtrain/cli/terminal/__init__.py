"""How commands write to a terminal, a pipe or a file."""
