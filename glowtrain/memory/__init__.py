"""Memory as people speak of it: bytes, and budgets of them."""
