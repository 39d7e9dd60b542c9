"""Copies of operands in the form in which kernels read them, and prefetches of what is read next."""
