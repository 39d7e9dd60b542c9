"""The memory plan and its independent verifier."""
