"""Copies that pack operands for the kernels, and prefetches of what is read next."""
