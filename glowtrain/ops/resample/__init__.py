"""Resizing and sampling at real coordinates."""
