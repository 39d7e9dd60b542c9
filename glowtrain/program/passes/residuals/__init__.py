"""What the forward part of a training step leaves for its backward part waits in bf16."""
