"""Program: the low-level IR. Instructions over buffers, its text, verifier, evaluator, passes and memory plan."""
