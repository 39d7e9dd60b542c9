"""Modules whose pieces are compiled at the same time: together they are what one object would be."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.step import ENTRY, generate
from glowtrain.backends.cpu.threads.share import Shared
from glowtrain.backends.llvm import pieces, toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.compiler.function import compile_artifact
from glowtrain.compiler.walk import planned
from glowtrain.errors import ArtifactError, CodegenError
from glowtrain.stages import Options
from tests.cpu.native_program import Native
from tests.cpu.test_tasks import bits, numbers, plan_of

HOST = Target.host()


class InPieces(Native):
    """A program whose module is compiled in pieces."""

    count = 3

    def loaded(self, target: Target):  # type: ignore[no-untyped-def]
        objects = pieces.compile_pieces(self.code.text, target, self.count)
        assert len(objects) == self.count
        return toolchain.load(objects, [ENTRY]).function(ENTRY, 1)


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "quantized"])
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SIZE", 1000)
    plan = plan_of(name)
    feeds = numbers(plan.program)
    assert bits(InPieces(plan.program, HOST, plan), feeds) == bits(Native(plan.program, HOST, plan), feeds)


def test_every_function_is_in_one_piece_and_of_the_same_length() -> None:
    text = generate(plan_of("transformer"), HOST, runner=Shared(grain=0)).text
    names = re.findall(r"^define [^@]*@([\w.$]+)", text, re.MULTILINE)
    parts = pieces.cut(text, 4)
    assert sorted(re.findall(r"^define [^@]*@([\w.$]+)", "".join(parts), re.MULTILINE)) == sorted(names)
    assert max(map(len, parts)) < 1.5 * min(map(len, parts))
    assert "internal" not in "".join(parts)


def test_small_modules_stay_whole() -> None:
    text = generate(plan_of("mlp"), HOST).text
    assert len(pieces.compile_pieces(text, HOST, 1)) == 1
    assert len(pieces.compile_pieces("define void @f() #0 {\n  ret void\n}\n", HOST, 8)) == 1


def test_what_llvm_rejects_names_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SIZE", 10)
    good = "define void @good() #0 {\n  ret void\n}\n"
    with pytest.raises(CodegenError, match="function bad"):
        pieces.compile_pieces(good + good.replace("good", "bad").replace("ret", "rot"), HOST, 2)


def test_without_threads_pieces_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pieces, "SIZE", 1000)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert len(pieces.compile_pieces(generate(plan_of("mlp"), HOST).text, HOST, 3)) == 3


def test_an_artifact_for_a_linker_is_one_object() -> None:
    graph = models.build("transformer", (1, 8, 8)).bind({"batch": 4})
    several = Cpu(threads=4).compile(planned(graph), Options())
    assert len(several.objects) > 1
    assert several.from_bytes(several.to_bytes()).objects == several.objects
    with pytest.raises(ArtifactError, match="objects; gt.compile_artifact makes one"):
        assert several.code
    one = compile_artifact(graph, Cpu(threads=4))
    assert one.objects == (one.code,)  # type: ignore[attr-defined]


def test_functions_run_from_several_objects() -> None:
    graph = models.build("transformer", (1, 28, 28)).bind({"batch": 2})
    x = np.random.default_rng(0).normal(size=(2, 1, 28, 28)).astype(np.float32)
    one, four = (gt.compile(graph, Cpu(threads=threads))({"x": x}) for threads in (1, 4))
    assert all(one[name].tobytes() == four[name].tobytes() for name in one)
