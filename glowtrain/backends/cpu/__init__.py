"""The cpu backend: planned programs as native code through LLVM."""
