"""Random programs up the ladder."""
