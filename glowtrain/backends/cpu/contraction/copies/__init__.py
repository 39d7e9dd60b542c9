"""Copies of operands in the form in which kernels read them, and what is asked for before it is read."""
