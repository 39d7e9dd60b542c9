"""The Makefile of a bundle's example."""

from __future__ import annotations

from glowtrain.bundles.module import BundleModule


def makefile(module: BundleModule) -> str:
    """``make`` builds the example, ``make check`` compares what it prints with what is expected."""
    return f"""# Builds and runs the example. For another processor, name its compiler and what runs its programs:
#   make check CC="aarch64-linux-gnu-gcc -static" RUN=qemu-aarch64
CFLAGS ?= -O2 -std=c99 -Wall -Wextra
RUN ?=

example: main.c {module.name}.o {module.name}.h
\t$(CC) $(CFLAGS) main.c {module.name}.o -o $@

.PHONY: check clean
check: example
\t$(RUN) ./example > printed.txt
\tcmp printed.txt expected.txt && echo "the same bits"

clean:
\trm -f example printed.txt
"""
