"""The order in which sums are taken, as passes compare it."""
