"""Loop fusion: fuse kernels over equal boxes, and sums of rows with the loop through the rows; split loops whose index
is only divided."""
