"""Operators whose indices are data: gather, scatter, selection, sorting."""
