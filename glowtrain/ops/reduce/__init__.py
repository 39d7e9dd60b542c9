"""Reductions, running sums and softmax."""
