"""Bundles on small processors: what they take, whether that fits, and boards to run them on."""
