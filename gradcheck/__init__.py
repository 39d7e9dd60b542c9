"""Gradient checks: every operator, random programs, or a model of one's own. Imported as ``glowtrain.gradcheck``.

``check_registry()`` checks operators, ``check(model)`` a model; both give a :class:`GradcheckReport`. ``paths(model)``
says where gradients of a model flow, before anything is computed.
``glowtrain.gradcheck.strategies`` holds hypothesis strategies for tests (it needs the extra ``gradcheck``).
"""

from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.models.model import check
from glowtrain.gradcheck.models.paths import paths
from glowtrain.gradcheck.operators.oracles import ORACLES, check_sample
from glowtrain.gradcheck.operators.page import page
from glowtrain.gradcheck.operators.registry import PROFILES, RegistryReport, check_registry
from glowtrain.gradcheck.programs.rungs import PROGRAM_ORACLES, check_case
from glowtrain.gradcheck.report.html import write_html
from glowtrain.gradcheck.report.junit import write_junit
from glowtrain.gradcheck.report.paths import GradientPaths
from glowtrain.gradcheck.report.report import Check, GradcheckReport, Measure

__all__ = [
    "ORACLES",
    "PROFILES",
    "PROGRAM_ORACLES",
    "Check",
    "ChoiceDraw",
    "GradcheckReport",
    "GradientPaths",
    "Measure",
    "RegistryReport",
    "check",
    "check_case",
    "check_registry",
    "check_sample",
    "page",
    "paths",
    "write_html",
    "write_junit",
]
