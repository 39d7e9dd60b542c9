"""A pytest plugin: the fixture ``gradcheck``, for operators and models of one's own.

    def test_my_operator(gradcheck):
        gradcheck.operator(MyOperator, examples=20)

    def test_my_model(gradcheck):
        gradcheck.model(graph, {"x": batch}, loss="loss")

It is found by its entry point where Glowtrain is installed (``-p glowtrain.pytest_plugin`` elsewhere). Every pytest run
of the environment imports this module, so it imports nothing until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

KIT = "glowtrain.kit"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("glowtrain", "gradient checks (glowtrain)")
    group.addoption("--gradcheck-examples", type=int, metavar="N", help="samples of each operator (else the test's)")
    group.addoption("--gradcheck-seed", type=int, default=0, metavar="N", help="seed of what is drawn (0)")
    group.addoption(
        "--gradcheck-report",
        metavar="DIR",
        help="write a page of HTML (needs glowtrain[plot]) for each test with gradient checks",
    )


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the kit for backends (:mod:`glowtrain.kit`) where its tests are to run, so that its options are there."""
    if any(argument.startswith(KIT) for argument in args):
        early_config.pluginmanager.import_plugin(f"{KIT}.plugin")


@pytest.fixture
def gradcheck(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Gradient checks that fail the test: a :class:`glowtrain.gradcheck.plugin.GradCheck`."""
    options = request.config.option
    if options.gradcheck_report:
        import_module("glowtrain.presentation.figures").check_drawing()
    checks = import_module("glowtrain.gradcheck.plugin").GradCheck(options.gradcheck_examples, options.gradcheck_seed)
    yield checks
    if options.gradcheck_report:
        checks.write(Path(options.gradcheck_report), request.node.name)
