"""Training with rounding in the loop."""
