"""Moving elements: transpose, reshape, slice, split, pad."""
