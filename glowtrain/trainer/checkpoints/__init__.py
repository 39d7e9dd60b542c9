"""Training runs in files: what they hold, whose they are, copies of trainers."""
