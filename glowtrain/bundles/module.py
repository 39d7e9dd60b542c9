"""Compile what a bundle computes to one object file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from glowtrain import compiler
from glowtrain.backends.discovery import backend_for
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.table import LinkableModule
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import Contents
from glowtrain.bundles.interface import VERSION, Interface, interface_text
from glowtrain.bundles.memory import VariableMemory, lay_out
from glowtrain.bundles.signature import BundleFunction, function_of, hyper_of
from glowtrain.compiler import service
from glowtrain.errors import BundleError
from glowtrain.ops.quantized.fixed_point import Rescale
from glowtrain.optim import HYPER
from glowtrain.optimize.fixed_point import in_fixed_point
from glowtrain.stages import Options


@dataclass(frozen=True)
class BundleModule:
    """Everything that a bundle's files are written from. ``body``: the LLVM text of its functions' code; ``options``:
    what they were compiled with."""

    contents: Contents
    target: Target
    body: str
    functions: tuple[BundleFunction, ...]
    memory: VariableMemory
    threads: int
    options: Options

    @property
    def name(self) -> str:
        return self.contents.name

    @property
    def step(self) -> BundleFunction | None:
        """The function that trains, if there is one."""
        return next((function for function in self.functions if function.trains), None)

    @property
    def trains(self) -> bool:
        """Whether one of the functions does."""
        return self.step is not None

    @property
    def predictions(self) -> list[BundleFunction]:
        """The functions that do not train."""
        return [function for function in self.functions if not function.trains]

    @property
    def hyper(self) -> dict[str, float]:
        """The defaults of the hyperparameters, by their names in C."""
        return {each.name: self.contents.hyper[each.source.removeprefix(HYPER)] for each in hyper_of(self.functions)}

    @cached_property
    def version(self) -> int:
        """A number for the interface, all that the header says, and all numbers that the object holds."""
        said = zlib.crc32(json.dumps([VERSION, self._said], sort_keys=True).encode())
        held = [self.memory.image]
        held += [array.tobytes() for function in self.functions for array in function.code.constants.values()]
        return reduce(lambda sum_, data: zlib.crc32(data, sum_), held, said) or 1

    @property
    def _said(self) -> Sequence[Any]:
        signatures = [[f.name, *(str(t) for t in (*f.inputs, *f.hyper, *f.outputs))] for f in self.functions]
        slots = [[slot.name, str(slot.type), slot.offset, slot.layout] for slot in self.memory.slots]
        return [self.name, self.target.name, signatures, slots, self.memory.size, self.threads]

    @cached_property
    def interface(self) -> Interface:
        return Interface(
            self.name, self.target, self.functions, self.memory, self.version, tuple(self.hyper.values()), self.threads
        )

    @cached_property
    def code(self) -> bytes:
        """The object file."""
        return toolchain.compile_text(self.text, self.target)

    @cached_property
    def text(self) -> str:
        """The LLVM text of everything."""
        return f"{self.body}\n{interface_text(self.interface)}"


def module_of(
    contents: Contents, target: Target, options: Options, *, holds_weights: bool, threads: int = 1
) -> BundleModule:
    """Compile what a bundle computes up to LLVM text. ``holds_weights``: the object holds the weights. Nothing is used
    that a program must ask the system for.

    Raises :class:`CodegenError` for what the target cannot run, :class:`BundleError` for operators that are native
    functions of this process, and for ``fixed_point`` where nothing is quantized.
    """
    contents, target = contents.fixed() if holds_weights else contents, target.unasked
    backend = backend_for(target, threads=threads)
    options = service.in_bytes(contents.graphs, options, backend.stages(compiler.walk.WALK))
    if options.fixed_point:
        _check_rescaled(contents)
    module = service.module(contents.graphs, backend, replace(options, prefix=f"{contents.name}__"))
    _check_natives(contents.name, module)
    functions = tuple(function_of(contents.name, name, code) for name, code in module.functions.items())
    layouts = {name: layout for code in module.functions.values() for name, layout in code.layouts.items()}
    memory = lay_out(contents.variables, contents.roles, layouts, target.alignment, initialised=holds_weights)
    return BundleModule(contents, target, module.text, functions, memory, threads, options)


def _check_rescaled(contents: Contents) -> None:
    """Raise :class:`BundleError` where there is nothing that ``fixed_point`` changes."""
    nodes = (node for graph in contents.graphs.values() for node in in_fixed_point(graph).nodes)
    if not any(isinstance(node.operator, Rescale) for node in nodes):
        raise BundleError(
            f"fixed_point (--fixed-point) changes nothing in {contents.name}, which has no quantized sums to rescale "
            "by integers: quantize the model first (glowtrain quantize, gt.quantize), or leave it out"
        )


def _check_natives(name: str, module: LinkableModule) -> None:
    natives = {function.name for code in module.functions.values() for function in code.natives}
    if natives:
        raise BundleError(
            f"{name} calls native functions of this process ({', '.join(sorted(natives))}), which no other program "
            "has; leave native() out of their operators, so that they are compiled from decompose() or lower()"
        )
