"""General loop nests as LLVM functions: expressions, reductions, the choice of what runs along vector lanes."""
