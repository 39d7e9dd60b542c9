"""Operators that are defined by simpler ones: types, results and gradients follow from the decomposition."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Constant, Input, Operator, Value, topological
from glowtrain.graph.operator import as_tuple
from glowtrain.ops.core.evaluate import run_nodes
from glowtrain.types import Array, TensorType, type_of


class Composite(Operator):
    """A subclass gives ``define``, and ``check`` for its own rules."""

    takes: ClassVar[tuple[int, int]]
    """The number of operands that must be there, and the largest number; -1 for any."""

    def check(self, *inputs: TensorType | None) -> None:
        """Raise what :meth:`fail` gives for operands that break a rule."""

    def define(self, *inputs: Any) -> Any:
        """The result(s) by simpler operators, as graph code on ``takes[1]`` values; ``None`` where one is absent."""
        raise NotImplementedError

    def decompose(self, *inputs: Any) -> Any:
        return self.define(*self._padded(inputs))

    def infer(self, *inputs: Any) -> Any:
        least, most = self.takes
        if len(inputs) < least or (len(inputs) > most >= 0):
            count = f"{least}" if least == most else f"{least} to {most}" if most >= 0 else f"at least {least}"
            raise self.fail(f"takes {count} operands, not {len(inputs)}", *inputs)
        types = self._padded(inputs)
        self.check(*types)
        values = [None if type_ is None else Input(type_, f"x{position}") for position, type_ in enumerate(types)]
        try:
            results = self.define(*values)
        except ShapeError as error:
            raise self.fail(f"in its decomposition: {error}", *inputs) from None
        return tuple(v.type for v in results) if isinstance(results, tuple) else results.type

    def _padded(self, inputs: Any) -> tuple[Any, ...]:
        return (*inputs, *(None,) * (self.takes[1] - len(inputs)))

    def reference(self, *inputs: Any) -> Any:
        arrays = self._padded(inputs)
        # The type is that of the real part: gradcheck passes complex numbers.
        values = [None if x is None else Input(type_of(x.real), f"x{position}") for position, x in enumerate(arrays)]
        results = self.define(*values)
        wanted = as_tuple(results)
        environment: dict[Value, Array] = {v: x for v, x in zip(values, arrays, strict=True) if v is not None}
        environment.update((value, value.array) for value in wanted if isinstance(value, Constant))
        run_nodes(topological(wanted), environment)
        found = tuple(np.asarray(environment[value]) for value in wanted)
        return found if isinstance(results, tuple) else found[0]
