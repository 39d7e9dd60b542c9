"""Gradients of a model of the user's."""
