"""Operators on every element: arithmetic, logic, activations, casts."""
