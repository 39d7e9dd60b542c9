"""Convolutions, their gradients and their geometry."""
