"""Fourier transforms and their windows."""
