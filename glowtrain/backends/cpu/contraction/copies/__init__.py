"""Copies of operands in the form in which kernels read them."""
