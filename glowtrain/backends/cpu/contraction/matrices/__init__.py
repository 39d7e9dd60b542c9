"""Contractions of bytes by registers that hold matrices: 16 rows of 64 bytes (AMX)."""
