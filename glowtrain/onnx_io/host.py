"""Nodes of a file that run on the host, by the reference evaluator of the ``onnx`` package.

It decodes images by Pillow (the extra ``images``) and matches patterns of RegexFullMatch by Python's ``re``, which
takes what RE2 takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto

from glowtrain.errors import InputError, ModelError, UnsupportedOperatorError, check_extra
from glowtrain.graph.input_arrays import as_array
from glowtrain.onnx_io.read.check import all_nodes
from glowtrain.onnx_io.read.source import change_attributes
from glowtrain.onnx_io.schema.tensors import dtype_from_onnx
from glowtrain.types import Array, TensorType

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

IMAGES = "ImageDecoder"


@dataclass(frozen=True, eq=False)
class OnnxHostPart:
    """The nodes of ``proto``, as a callable: see :class:`~glowtrain.graph.hosted.HostPart`.

    Raises :class:`UnsupportedOperatorError` for operators that the evaluator does not have, :class:`ModelError` for
    what it cannot read.
    """

    proto: ModelProto
    title: str

    def __post_init__(self) -> None:
        try:
            _ = self._evaluator
        except NotImplementedError as error:
            raise UnsupportedOperatorError(f"{self.title}: on the host: {error}") from None
        except Exception as error:
            raise ModelError(f"{self.title}: on the host ({', '.join(self.operators)}): {error}") from error

    def __reduce__(self) -> tuple[Callable[..., OnnxHostPart], tuple[Any, ...]]:
        return OnnxHostPart, (self.proto, self.title)

    @cached_property
    def operators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.op_type for node in self.proto.graph.node if node.op_type != "Constant"))

    @cached_property
    def _evaluator(self) -> ReferenceEvaluator:
        """Without locales of StringNormalizer, which it would set for the whole process: Python's strings change their
        case without one. Its Equal takes strings of one kind of array, and its nodes give two."""
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  (hundreds of modules: most files need none)
        from onnx.reference.ops import op_equal  # noqa: PLC0415

        class Equal(op_equal.Equal):
            def run(self, *operands: Any, **rest: Any) -> Any:
                return super().run(*map(_objects, operands), **rest)  # type: ignore[no-untyped-call]

        proto = ModelProto()
        proto.CopyFrom(self.proto)
        for node in all_nodes(proto.graph.node):
            if node.op_type == "StringNormalizer":
                change_attributes(node, {"locale"})
        return ReferenceEvaluator(proto, new_ops=[Equal])

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {value.name: self._input(value, values) for value in self.proto.graph.input}
        if not self.proto.graph.output:
            return {}
        if any(node.op_type == IMAGES for node in all_nodes(self.proto.graph.node)):
            check_extra(f"{self.title}: decoding images", "Pillow", "PIL", "images")
        try:
            results = self._evaluator.run(None, inputs)
        except Exception as error:  # of many kinds: what Pillow says of images has no base class of its own
            shown = ", ".join(self.operators)
            raise InputError(f"{self.title}: on the host ({shown}): {str(error) or type(error).__name__}") from error
        names = (value.name for value in self.proto.graph.output)
        return {name: _objects(result) for name, result in zip(names, results, strict=True)}

    def _input(self, declared: ValueInfoProto, values: Mapping[str, Any]) -> Any:
        name, type_ = declared.name, declared.type
        if name not in values:
            raise InputError(f"{self.title}: input {name!r} is missing")
        return self._tensor(name, values[name], type_.tensor_type) if type_.HasField("tensor_type") else values[name]

    def _tensor(self, name: str, value: Any, type_: TypeProto.Tensor) -> Array:
        """A call's value as an array of a declared element type and rank. Raises :class:`InputError`."""
        what = f"{self.title}: {name!r}"
        if type_.elem_type == TensorProto.STRING:
            array = _strings(value, what)
        else:
            dtype = dtype_from_onnx(type_.elem_type, what)
            array = as_array(value, TensorType(dtype), name)
            if array.dtype != dtype.numpy:
                raise InputError(f"{what} must be {dtype.numpy}, not {array.dtype}")
        if type_.HasField("shape") and array.ndim != len(type_.shape.dim):
            raise InputError(f"{what} must have {len(type_.shape.dim)} axes, not the shape {list(array.shape)}")
        return array


def _strings(value: Any, what: str) -> Array:
    try:
        array = np.asarray(value).astype(object)
    except ValueError as error:
        raise InputError(f"{what} is a list that is no tensor: {error}") from None
    for each in array.ravel():
        if not isinstance(each, str):
            raise InputError(f"{what} must be strings, and has {each!r}")
    return array


def _objects(value: Any) -> Any:
    """Arrays as they are, of strings as objects: the evaluator gives some as NumPy's text of fixed width."""
    if isinstance(value, list):
        return [_objects(each) for each in value]
    return np.asarray(value, object) if isinstance(value, np.ndarray) and value.dtype.kind == "U" else value
