"""Python over the C interface of a bundle, with NumPy alone."""
