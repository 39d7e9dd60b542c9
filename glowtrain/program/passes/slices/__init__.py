"""Run neighbouring kernels slice by slice along an axis, so that the buffers between them are a slice long."""
