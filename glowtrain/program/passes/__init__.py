"""Program to program: layout, producer inlining, loop fusion, schedule."""
