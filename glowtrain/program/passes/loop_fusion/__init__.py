"""Kernels over equal boxes become one, and sums of rows join the loop through the rows; loops whose index is only
divided go over the parts."""
