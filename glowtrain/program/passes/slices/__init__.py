"""Neighbouring kernels that run slice after slice of an axis, so that what lies between them is a slice long."""
