"""Passes over graphs: each a frozen dataclass with ``run(graph) -> graph``; ``pipeline.optimize`` runs them all."""
