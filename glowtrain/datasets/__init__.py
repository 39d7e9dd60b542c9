"""Data that ships with the package; :mod:`glowtrain.data` reads it. The licence of each file stands beside it."""
