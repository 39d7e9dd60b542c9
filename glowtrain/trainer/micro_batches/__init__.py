"""Steps in equal parts of a batch, one after the other."""
