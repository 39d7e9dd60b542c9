"""Which values are rounded, and on which grid."""
