"""Run a step on several cores: the pool of threads, and the code that shares a call out among them."""
