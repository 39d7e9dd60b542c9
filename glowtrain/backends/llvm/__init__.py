"""What every LLVM target shares: text, formats, scalar and vector maths, targets and the toolchain."""
