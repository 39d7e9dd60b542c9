"""Kernels over equal boxes become one."""
