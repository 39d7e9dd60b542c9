"""The table of pointers that a step is given: its first entries; then come the buffers outside of the arena."""

ARENA, WORKSPACES, POOL, FIRST_SLOT = range(4)
"""What the table begins with; then the buffers outside of the arena."""
