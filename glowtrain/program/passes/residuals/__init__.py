"""Store the activations that a training step saves for its backward part in bf16."""
