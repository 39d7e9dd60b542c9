"""Compiled code on disk: where it lies, under which keys, who may write there, and how much of it there may be."""
