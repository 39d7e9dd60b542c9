"""A model of which parts run on the host: what handles strings and encoded images, which no tensor of numbers holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from glowtrain.errors import InputError
from glowtrain.graph.graph import Graph
from glowtrain.graph.specialise.template import Template
from glowtrain.presentation.messages import kind_of, unknown


class HostPart(Protocol):
    """What runs on the host, before or after compiled code."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it runs, each once; none of a part that is empty."""

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Its outputs by name, of values that have its inputs. Strings are arrays of objects.

        Raises :class:`InputError` for inputs that are missing or do not fit.
        """


@dataclass(frozen=True, eq=False)
class HostedModel:
    """A model between two parts that run on the host: ``before`` gives ``model`` numbers, ``after`` turns numbers into
    what the outputs are.

    ``model`` is what is compiled, differentiated, trained and shipped; ``inputs`` and ``outputs`` are the names of the
    whole. ``gt.compile`` and ``gt.save`` take the whole; everything else takes ``model``, and data from
    :meth:`preprocess`. ``dataclasses.replace`` puts another ``model`` between the parts.
    """

    model: Graph | Template
    before: HostPart
    after: HostPart
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __repr__(self) -> str:
        """``<HostedModel host(StringNormalizer, LabelEncoder); <Template ...>; host(LabelEncoder)>``"""
        before, after = ([f"host({', '.join(part.operators)})"] * bool(part.operators) for part in self._parts)
        return f"<HostedModel {'; '.join([*before, repr(self.model), *after])}>"

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that run on the host, each once."""
        return tuple(dict.fromkeys(name for part in self._parts for name in part.operators))

    @property
    def _parts(self) -> tuple[HostPart, HostPart]:
        return self.before, self.after

    def preprocess(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """A data set for ``model``, made of one for the whole: any number of examples by name of the input.

        Arrays of other names stay as they are (labels, weights of examples). Raises :class:`InputError` for inputs that
        are missing or do not fit, :class:`MissingExtraError` for images without Pillow.
        """
        read = self._read
        rest = {name: array for name, array in arrays.items() if name in read or name not in self.inputs}
        return rest | {name: array for name, array in self.before(arrays).items() if name in read}

    def run(self, inputs: Mapping[str, Any], call: Callable[[dict[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
        """The whole's outputs by name, where ``call`` gives those of ``model``.

        Raises :class:`InputError` for inputs that are missing, unknown or do not fit.
        """
        if not isinstance(inputs, Mapping):
            raise InputError(f"{self.model.name}: inputs must be a dict from names to arrays, not {kind_of(inputs)}")
        if problem := unknown(inputs, self.inputs, "input"):
            raise InputError(f"{self.model.name}: there is {problem}")
        values = {**inputs, **self.before(inputs)}
        values |= call({name: value for name, value in values.items() if name in self._read})
        values |= self.after(values)
        return {name: values[name] for name in self.outputs}

    @property
    def _read(self) -> set[str]:
        """The names of the inputs of ``model``."""
        if isinstance(self.model, Graph):
            return set(self.model.input_types)
        return {*self.model.inputs, *self.model.structures}
