"""Backends: ways to run a graph or a planned program."""
