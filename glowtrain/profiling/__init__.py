"""Where the time of a compiled step goes: measured kernel by kernel, beside what the machine could do."""
