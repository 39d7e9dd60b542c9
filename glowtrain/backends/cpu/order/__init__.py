"""In which order floats are summed: a fact of programs, the same for every target (ADR 19)."""
