"""What a model leaves open, and how calls bind it."""
