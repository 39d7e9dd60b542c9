"""Whether a bundle computes the same bits on another processor."""
