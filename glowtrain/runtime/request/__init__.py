"""Requests: waiting, joined to batches, answered."""
