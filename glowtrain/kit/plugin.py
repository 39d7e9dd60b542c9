"""The kit's options, its fixtures, and the report at the end (docs/backends.md).

:mod:`glowtrain.pytest_plugin` loads it where the kit is collected; elsewhere ``-p glowtrain.kit.plugin`` does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.compiler import compile_artifact
from glowtrain.errors import CodegenError, GlowtrainError
from glowtrain.kit.models import MODELS
from glowtrain.kit.operators import TYPES
from glowtrain.kit.refusals import ExpectedRefusals, skip_refused
from glowtrain.kit.report import LEVELS, KitReport, level_of
from glowtrain.types import DType

REPORT, BACKEND = pytest.StashKey[KitReport](), pytest.StashKey[Backend]()


def _types(text: str) -> tuple[DType, ...]:
    """Element types by names."""
    chosen = tuple(dtype for dtype in TYPES if dtype.name in text.split(","))
    if len(chosen) != len(text.split(",")):
        raise ValueError(text)
    return chosen


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kit's options."""
    group = parser.getgroup("glowtrain.kit", "conformance tests of a backend (glowtrain.kit)")
    group.addoption("--backend", metavar="NAME", help="the backend under test")
    levels = sorted(set(LEVELS.values()))
    group.addoption("--level", type=int, choices=levels, default=levels[-1], help="the last level to run (3)")
    group.addoption(
        "--types", type=_types, default=TYPES, metavar="T,...", help="float types of operators' samples (all four)"
    )
    group.addoption("--examples", type=int, default=1, metavar="N", help="samples of each operator and type (1)")
    group.addoption("--programs", type=int, default=24, metavar="N", help="random programs (24)")
    group.addoption(
        "--refusals", type=Path, metavar="FILE", help="TOML: what the backend may refuse; all else is a failure"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Find the backend, and begin the report."""
    config = session.config
    if config.option.backend is None:
        raise pytest.UsageError("say which backend is tested: --backend NAME")
    try:
        config.stash[BACKEND] = backend_of(config.option.backend)
        path = config.option.refusals
        expected = None if path is None else ExpectedRefusals.read(path)
    except GlowtrainError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[REPORT] = KitReport(expected)
    config.pluginmanager.register(config.stash[REPORT])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many random programs as there shall be."""
    if "program_number" in metafunc.fixturenames:
        metafunc.parametrize("program_number", range(metafunc.config.option.programs))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the levels above ``--level``."""
    deselected = [item for item in items if level_of(item.nodeid) > config.option.level]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if level_of(item.nodeid) <= config.option.level]


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> Backend:
    """The backend under test."""
    return pytestconfig.stash[BACKEND]


@pytest.fixture(scope="session")
def expected_refusals(pytestconfig: pytest.Config) -> ExpectedRefusals | None:
    """What the backend may refuse, if that was said."""
    return pytestconfig.stash[REPORT].expected


@pytest.fixture(params=MODELS)
def model_name(request: pytest.FixtureRequest, backend: Backend, expected_refusals: ExpectedRefusals | None) -> str:
    """A model that the backend does not refuse."""
    name: str = request.param
    try:
        compile_artifact(MODELS[name].step(), backend)
    except CodegenError as error:
        skip_refused(str(error), expected_refusals)
    return name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What is missing, and the levels passed."""
    report = config.stash.get(REPORT, None)
    if report is not None and (lines := report.lines()):
        terminalreporter.section(f"backend {config.option.backend}")
        for line in lines:
            terminalreporter.line(line)
