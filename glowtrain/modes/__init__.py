"""A model's training and inference modes: graph transforms that know nothing of files."""
