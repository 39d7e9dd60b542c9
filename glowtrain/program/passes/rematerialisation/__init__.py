"""Results that would be kept for long are dropped and computed again shortly before they are read, and instructions
move to where less is alive."""
