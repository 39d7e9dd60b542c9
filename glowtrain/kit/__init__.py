"""Conformance tests for backends: ``pytest --pyargs glowtrain.kit --backend NAME`` (docs/backends.md).

Level 1 runs each operator, random programs and the models' ladders on the backend; level 2 trains six models; level 3
injects failures. What a backend refuses by :class:`~glowtrain.errors.CodegenError`, or has no door for, is skipped, and
listed in the report at the end.
"""
