"""Other languages over the C interface of a bundle."""
