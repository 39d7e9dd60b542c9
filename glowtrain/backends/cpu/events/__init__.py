"""Event logs of profiled code: when each call ran, and the text that appends to them."""
