"""The times of calls: the log that profiled code notes them in, and the text that does it."""
