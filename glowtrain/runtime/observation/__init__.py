"""What the runtime did, in numbers and over time."""
