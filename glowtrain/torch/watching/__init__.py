"""Guards of compiled steps: whether what one works on is still what it was."""
