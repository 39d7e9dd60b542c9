"""Modules whose pieces are compiled at the same time: together they are what one object would be."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import replace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.cpu import emit
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.step import ENTRY, generate
from glowtrain.backends.cpu.threads.share import Shared
from glowtrain.backends.llvm import pieces, toolchain
from glowtrain.backends.target import Target
from glowtrain.compiler.function import compile_artifact
from glowtrain.compiler.walk import WALK, after, arrive, joined
from glowtrain.errors import ArtifactError, CodegenError
from glowtrain.stages import Options
from tests.cpu.native_program import Native
from tests.cpu.test_tasks import bits, numbers, plan_of

HOST = Target.host()


class InPieces(Native):
    """A program whose module is compiled in pieces."""

    threads = 3

    def loaded(self, target: Target):  # type: ignore[no-untyped-def]
        objects = pieces.compile_pieces(self.code.text, target, self.threads)
        assert len(objects) > 2
        return toolchain.load(objects, [ENTRY]).function(ENTRY, 1)


@pytest.mark.parametrize(
    "text", ["define a\n}\n", "; first\n\ndefine a\n  define\n}\n\ndefine b\n}", "define", "x\n", "\n"]
)
def test_functions_are_cut_where_lines_begin(text: str) -> None:
    found = [part for part in re.split(r"^(?=define )", text, flags=re.MULTILINE) if part.strip()]
    assert pieces.functions_in(text) == found


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "quantized"])
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST", 1000)
    plan = plan_of(name)
    feeds = numbers(plan.program)
    assert bits(InPieces(plan.program, HOST, plan), feeds) == bits(Native(plan.program, HOST, plan), feeds)


def modules(text: str, monkeypatch: pytest.MonkeyPatch, least: float) -> list[str]:
    """The texts of the pieces of a module."""
    texts: list[str] = []
    with monkeypatch.context() as patched, pieces.ObjectPieces(HOST, 1, least) as made:
        patched.setattr(toolchain, "parsed", lambda text, target: texts.append(text))
        made.add(text)
        made._close()
    return texts


def test_every_function_is_in_one_piece_and_pieces_grow_with_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    text = generate(plan_of("transformer"), HOST, runner=Shared(grain=0)).text
    names = re.findall(r"^define [^@]*@([\w.$]+)", text, re.MULTILINE)
    longest = max(map(len, pieces.functions_in(text)))
    parts = modules(text, monkeypatch, 2000)
    assert re.findall(r"^define [^@]*@([\w.$]+)", "".join(parts), re.MULTILINE) == names
    assert "internal" not in "".join(parts)
    written = 0
    for part in parts[:-1]:
        size = len(part.partition("declare ")[0])
        written += size
        wanted = max(2000, min(pieces.MOST, written // pieces.PART))
        assert wanted <= size < wanted + 2 * longest
    assert len(parts) > pieces.PART
    monkeypatch.setattr(pieces, "MOST", 3000)
    assert len(modules(text, monkeypatch, 2000)) > len(parts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_the_same_objects_for_any_number_of_threads(name: str) -> None:
    text = generate(plan_of(name), HOST).text
    one, *others = (objects(text, threads, 5000) for threads in (1, 2, 5))
    assert len(one) > 2
    assert all(other == one for other in others)


def objects(text: str, threads: int, size: float) -> tuple[bytes, ...]:
    with pieces.ObjectPieces(HOST, threads, size) as made:
        made.add(text)
        return made.finish()


@pytest.mark.exhaustive
@pytest.mark.parametrize("linkable", [False, True])
def test_both_passes_in_one_make_what_they_make_one_after_the_other(
    linkable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "LEAST", 5000)
    options, plan = Options(linkable=linkable), plan_of("transformer")
    cpu = Cpu(cache=None)
    apart = cpu._emit(options).run(cpu._generate(options).run(plan))
    together = cpu._compile(options).run(plan)
    assert (len(apart.objects) > 2) is not linkable
    assert together.to_bytes() == apart.to_bytes()


def test_who_wants_the_last_result_alone_gets_it_by_both_passes_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, stages = plan_of("mlp"), after("plan", Cpu(cache=None).stages(WALK))
    assert [stage.name for stage in joined(stages)] == ["compiled"]
    artifact = arrive(plan, stages=stages)
    monkeypatch.setattr(emit.EmitObjects, "run", lambda self, code: pytest.fail("not in one"))
    assert arrive(plan, stages=stages).to_bytes() == artifact.to_bytes()
    code = arrive(plan, stages=stages[:1])
    with pytest.raises(pytest.fail.Exception, match="not in one"):
        arrive(code, stages=stages[1:])


def test_stages_that_somebody_replaced_are_not_left_out() -> None:
    text, objects = after("plan", Cpu(cache=None).stages(WALK))
    other = replace(text, make=lambda options: emit.GenerateCode(HOST, options))
    assert joined((other, objects)) == (other, objects)
    last = replace(objects, make=lambda options: emit.EmitObjects())
    assert joined((text, last)) == (text, last)


def test_small_modules_stay_whole() -> None:
    text = generate(plan_of("mlp"), HOST).text
    (whole,) = objects(text, 2, math.inf)
    assert whole == toolchain.compile_text(text, HOST)
    assert len(pieces.compile_pieces("define void @f() #0 {\n  ret void\n}\n", HOST, 8)) == 1


def test_kernels_that_cannot_be_written_end_the_threads() -> None:
    """What goes wrong while text is written is raised, and no thread is left behind."""
    before = threading.active_count()
    with pytest.raises(CodegenError, match="no such kernel"):
        _written_until_an_error()
    assert threading.active_count() == before


def _written_until_an_error() -> None:
    with pieces.ObjectPieces(HOST, 3, 10) as made:
        for name in ("f", "g", "h"):
            made.add(f"define void @{name}() #0 {{\n  ret void\n}}\n")
        assert len(made._threads) == 2
        raise CodegenError("no such kernel")


def test_what_llvm_rejects_names_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST", 10)
    good = "define void @good() #0 {\n  ret void\n}\n"
    with pytest.raises(CodegenError, match="function bad"):
        pieces.compile_pieces(good + good.replace("good", "bad").replace("ret", "rot"), HOST, 2)


def test_without_threads_pieces_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pieces, "LEAST", 1000)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert len(pieces.compile_pieces(generate(plan_of("mlp"), HOST).text, HOST, 3)) > 2


def test_an_artifact_for_a_linker_is_one_object() -> None:
    graph = models.build("transformer", (1, 28, 28)).bind({"batch": 4})
    several = Cpu(threads=1).compile(arrive(graph), Options())
    assert len(several.objects) > 1
    assert several.from_bytes(several.to_bytes()).objects == several.objects
    with pytest.raises(ArtifactError, match="objects; gt.compile_artifact makes one"):
        assert several.code
    one = compile_artifact(graph, Cpu())
    assert one.objects == (one.code,)  # type: ignore[attr-defined]


def test_functions_run_from_several_objects() -> None:
    graph = models.build("transformer", (1, 28, 28)).bind({"batch": 2})
    x = np.random.default_rng(0).normal(size=(2, 1, 28, 28)).astype(np.float32)
    one, four = (gt.compile(graph, Cpu(threads=threads))({"x": x}) for threads in (1, 4))
    assert all(one[name].tobytes() == four[name].tobytes() for name in one)
