"""Lowering: graph to program."""
