"""Random draws by a counter-based generator."""
