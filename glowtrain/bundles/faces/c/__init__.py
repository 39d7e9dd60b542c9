"""C and C++: the header of a bundle, its worked example, and a class over the C interface."""
