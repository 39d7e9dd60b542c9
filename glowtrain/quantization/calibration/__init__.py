"""Ranges of activations, from data."""
