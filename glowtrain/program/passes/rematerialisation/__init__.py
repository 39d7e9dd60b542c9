"""Rematerialisation: drop results and recompute them shortly before they are read, and move instructions to where less
memory is live."""
