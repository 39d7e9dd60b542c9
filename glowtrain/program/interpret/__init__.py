"""The evaluator: programs in NumPy."""
