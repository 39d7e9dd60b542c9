"""Fortran over the C interface of a bundle."""
