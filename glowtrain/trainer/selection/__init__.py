"""What of a model is trained."""
