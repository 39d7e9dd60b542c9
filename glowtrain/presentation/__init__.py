"""Words, tables, pages and figures for people."""
