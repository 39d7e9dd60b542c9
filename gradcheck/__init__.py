"""Gradient checks: every operator, random programs, or a model of one's own. Imported as ``glowtrain.gradcheck``.

``check_registry()`` checks operators, ``check(model)`` a model; both give a :class:`Report`.
``glowtrain.gradcheck.strategies`` holds hypothesis strategies for tests (it needs the extra ``gradcheck``).
"""

import glowtrain.ops  # noqa: F401  (fills the registry)
from glowtrain.gradcheck.draw import SeededDraw
from glowtrain.gradcheck.html import write_html
from glowtrain.gradcheck.junit import write_junit
from glowtrain.gradcheck.model import check
from glowtrain.gradcheck.operators import ORACLES, check_sample
from glowtrain.gradcheck.page import page
from glowtrain.gradcheck.registry import PROFILES, RegistryReport, check_registry
from glowtrain.gradcheck.report import Check, Measure, Report
from glowtrain.gradcheck.rungs import PROGRAM_ORACLES, check_case

__all__ = [
    "ORACLES",
    "PROFILES",
    "PROGRAM_ORACLES",
    "Check",
    "Measure",
    "RegistryReport",
    "Report",
    "SeededDraw",
    "check",
    "check_case",
    "check_registry",
    "check_sample",
    "page",
    "write_html",
    "write_junit",
]
