"""Models of older operator sets, brought to the newest."""
