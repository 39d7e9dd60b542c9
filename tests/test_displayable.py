"""What results show in notebooks, beside the text that they have anywhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import glowtrain as gt
from glowtrain.backends.discovery import backend_of
from glowtrain.doctor.exercise import ExerciseRun
from glowtrain.doctor.report import DoctorReport
from glowtrain.gradcheck.report.report import Check, GradcheckReport
from glowtrain.presentation.displayable import STYLE, Displayable, fragment
from glowtrain.presentation.tables import Table
from glowtrain.profiling import profile
from glowtrain.profiling.memory import training_memory
from glowtrain.trainer.history import History
from glowtrain.verification import Rung, VerificationReport
from tests.notebooks import outputs_of

ODD = "<b>&amp;"
"""A name that is markup."""


@gt.model(x=gt.f32["batch", 8])
def small(x: gt.Value) -> dict[str, gt.Value]:
    hidden = gt.nn.relu(gt.nn.linear(x, 4, name=ODD))
    return {ODD: gt.nn.linear(hidden, 3, name="scores")}


def trainer(**settings: Any) -> gt.Trainer:
    made = gt.Trainer(small, gt.losses.mse(), gt.optim.Adam(lr=0.1), **settings)
    made.fit((np.ones((12, 8), np.float32), np.ones((12, 3), np.float32)), 2, 4, progress=False)
    return made


def graph() -> gt.Graph:
    return small.bind({"batch": 2})


def gradient_report() -> GradcheckReport:
    passed = Check("w", "rules", "passed", 3, 1e-9, 0.1)
    return GradcheckReport((passed, Check(ODD, "rules", "failed", 3, 1.0, 1e6, f"example 0: {ODD} differs")))


def quantized_report() -> Any:
    return gt.quantization.report(gt.quantize(small, {"x": np.ones((4, 8), np.float32)}), sensitivities=False)


def bundle_size() -> Any:
    return gt.bundle_size(small, dims={"batch": 1}, target="cortex-m4", name="small")


RESULTS: dict[str, tuple[Callable[[], Displayable], str, str]] = {
    "graph": (graph, "<Graph small(x f32[2,8]) -> ", "4 variables"),
    "trainer": (trainer, "<Trainer of small: 4 trained tensors", "51 of 51 parameters"),
    "history": (lambda: trainer().history, "<History of 2 epochs; ", "2 epochs are done"),
    "outline": (lambda: gt.summary(small), "layer ", "51 parameters, 44 multiply-adds for batch = 1"),
    "summary": (lambda: trainer().summary(), "layer ", "activations and gradients"),
    "memory": (lambda: trainer().memory(), "MemoryUse(", "of memory"),
    "memory of a step": (lambda: training_memory(trainer()), "<Report on small.step: ", "the peak: "),
    "profile": (lambda: profile(graph(), backend_of("cpu", 1), runs=1), "<Report on small: ", "between kernels"),
    "doctor": (
        lambda: DoctorReport({"python": ODD}, (ExerciseRun("host", 1, "abc"),)),
        "<Report of 1 run: all targets agree>",
        "fused",
    ),
    "verification": (
        lambda: VerificationReport(ODD, 2, (Rung("compiled", 0.1, 7.0, "y"),), "node 3"),
        f"<Report on {ODD}: rung compiled differs>",
        "differs",
    ),
    "gradcheck": (gradient_report, "<Report: 2 checked by 1 oracle", "&lt;b&gt;&amp;amp;, rules: example 0"),
    "gradient paths": (lambda: gt.gradcheck.paths(graph()), "<Report: gradients reach", "Gemm"),
    "bundle": (bundle_size, "BundleSize(name='small', ", "small for cortex-m4"),
    "quantization": (quantized_report, "<Report: small: ", "signal to noise"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_in_a_notebook_and_as_text(name: str) -> None:
    make, text, said = RESULTS[name]
    result = make()
    assert repr(result).startswith(text)
    page = result._repr_html_()
    assert said in page
    assert "<td" in page
    assert set(elements(page)) <= {"div", "style", "p", "table", "tr", "th", "td"}
    assert ODD not in page
    assert not re.search(r"https?:|src=|url\(", page)


@pytest.mark.parametrize("name", RESULTS)
def test_on_a_terminal(name: str) -> None:
    result = RESULTS[name][0]()
    console = Console(width=200, markup=False)
    with console.capture() as printed:
        console.print(result)
    text = unescape(re.sub(r"<style>.*</style>|<[^>]*>", " ", result._repr_html_(), flags=re.DOTALL))
    words = re.findall(r"\w+", text)
    assert len(set(words) - set(re.findall(r"\w+", printed.get()))) <= (3 if name == "gradient paths" else 0)


def elements(page: str) -> Iterator[str]:
    """The names of a page's elements, each of which has an end where it belongs."""

    class Reader(HTMLParser):
        opened: list[str] = []  # noqa: RUF012
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.opened.append(tag)
            self.found.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.opened.pop() == tag

    reader = Reader()
    reader.opened, reader.found = [], []
    reader.feed(page)
    assert not reader.opened
    yield from reader.found


def test_sentences_and_tables_are_escaped() -> None:
    page = fragment([ODD, "", Table((ODD, "n>"), [(ODD, (ODD, "failed"))], title=ODD)])
    assert page.count("&lt;b&gt;&amp;amp;") == 5
    assert page.count("<p") == 2
    assert '<td class="number failed">' in page


def test_colours_can_be_read_on_white_and_on_black() -> None:
    colours = re.findall(r"[^-]color: #([0-9a-f]{6});", STYLE)
    assert len(colours) == 4
    for colour in colours:
        assert min(contrast(colour, ground) for ground in ("ffffff", "111111")) > 3.5


def contrast(one: str, other: str) -> float:
    """By WCAG 2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_of_many_epochs_some_are_listed() -> None:
    history = History([{"epoch": n, "loss": 1 / n, **({"val_loss": 2 / n} if n > 900 else {})} for n in range(1, 1001)])
    page = history._repr_html_()
    assert page.count("<tr>") == 1 + 21
    assert "21 of 1,000 epochs" in page
    assert '<td class="number">1,000</td><td class="number">0.001</td><td class="number">0.002</td>' in page


def test_of_many_variables_some_are_listed() -> None:
    @gt.model(x=gt.f32[2, 2])
    def deep(x: gt.Value) -> gt.Value:
        for _ in range(30):
            x = gt.nn.linear(x, 2)
        return x

    page = deep.bind({})._repr_html_()
    assert page.count("<tr>") == 1 + 2 + 40
    assert "and 20 more variables (the graph as text has all)" in page
    assert "operators: Gemm × 30" in page


def test_a_kernel_shows_a_result_once(tmp_path: Path) -> None:
    """As HTML and as text without colours, though a kernel asks programs for these."""
    made = "import glowtrain as gt\n@gt.model(x=gt.f32['batch', 2])\ndef net(x):\n    return gt.nn.linear(x, 3)\n"
    shown, printed = outputs_of(f"{made}gt.summary(net)", "print(gt.summary(net))", folder=tmp_path)
    assert [output.output_type for output in shown] == ["execute_result"]
    assert shown[0].data["text/plain"].startswith("layer   operator  result    parameters  multiply-adds\n")
    assert "<table>" in shown[0].data["text/html"]
    assert "".join(output.text for output in printed) == shown[0].data["text/plain"] + "\n"


class TestSummaryOfTraining:
    def test_before_and_after_the_first_step(self) -> None:
        made = gt.Trainer(small, gt.losses.mse(), gt.optim.Adam(lr=0.1))
        before = made.summary()
        assert before.outline.dims == {"batch": 2}
        assert "of state; what a step takes besides is known once it is compiled" in str(before)
        after = made.summary(64)
        assert after.outline.dims == {"batch": 64}
        assert after.memory == made.memory()
        assert str(made.summary()) == str(after)

    def test_layers(self) -> None:
        lines = str(trainer(trainable=["scores.*"]).summary()).splitlines()
        assert lines[0].split() == ["layer", "operator", "result", "bytes", "parameters", "trained", "multiply-adds"]
        assert lines[1].split() == [ODD, "Gemm", "f32[4,4]", "64", "36", "128"]
        assert lines[3].split() == ["scores", "Gemm", "f32[4,3]", "48", "15", "15", "48"]
        assert lines[5].startswith("15 of the parameters are trained; a step takes 224 multiply-adds, 1.3 × those of")

    def test_a_part_of_a_parameter(self) -> None:
        assert trainer(trainable=["scores.*[:2]"]).summary().outline.trained == 2 * 3 + 2

    def test_what_the_loss_does_not_depend_on_is_not_trained(self) -> None:
        @gt.model(x=gt.f32["batch", 3])
        def two(x: gt.Value) -> dict[str, gt.Value]:
            return {"a": gt.nn.linear(x, 2, name="a"), "b": gt.nn.linear(x, 5, name="b")}

        with pytest.warns(gt.errors.UntrainedWarning):
            made = gt.Trainer(two, gt.losses.mse(output="a"), gt.optim.SGD(0.1))
        assert made.summary().outline.trained == 8
        assert "8 of 28 parameters" in made._repr_html_()

    def test_without_planned_memory(self) -> None:
        told = str(trainer(backend="interpreter").summary())
        assert "of state; InterpretedGraph has no planned memory; use backend cpu" in told

    def test_a_batch_that_does_not_fit(self) -> None:
        with pytest.raises(gt.errors.InputError, match="a batch has a whole number of examples"):
            trainer().summary(0)
