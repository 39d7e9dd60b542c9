"""ONNX's backend interface over compiled functions: for anything that drives ONNX backends.

    import glowtrain.onnx_io.backend as backend
    outputs = backend.prepare(model, device="CPU").run([x])

Interface: https://onnx.ai/onnx/api/backend.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from glowtrain.backends.discovery import backend_of
from glowtrain.compiler import Function, compile
from glowtrain.errors import InputError
from glowtrain.onnx_io.read.load import from_model
from glowtrain.onnx_io.read.source import read
from glowtrain.types import Array, dtype_of


class GlowtrainRep(BackendRep):
    """A prepared model: compiled for the inputs of each call, by shapes and where needed by values."""

    def __init__(self, function: Function, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.function = function
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order. ``inputs``: a sequence in the model's order, or a dict by name.

        Raises :class:`InputError` for another number of inputs than the model has, or ones of wrong types.
        """
        feeds = dict(inputs) if isinstance(inputs, Mapping) else self._named(inputs)
        results = self.function(feeds)
        named: tuple[Any, ...] = namedtupledict("Outputs", list(self.outputs))(
            *(results[name] for name in self.outputs)
        )
        return named

    def _named(self, inputs: Any) -> dict[str, Any]:
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(given) != len(self.inputs):
            raise InputError(f"the model takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), not {len(given)}")
        return dict(zip(self.inputs, given, strict=True))


class GlowtrainBackend(Backend):
    """Runs ONNX models through Glowtrain's compiled functions; a subclass may name another ``engine``."""

    engine: ClassVar[str] = "cpu"
    cached: ClassVar[bool] = True
    """Whether compiled code is kept, and taken where it is kept."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the device is there; what a model needs is said by :meth:`prepare`, which raises."""
        return cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a backend for a device such as ``"CPU"`` or ``"CPU:0"``."""
        return device.split(":")[0] == "CPU"

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> GlowtrainRep:
        """Load a model; it is compiled for the first call's inputs.

        Raises :class:`glowtrain.errors.ModelError` for what is broken or not supported, and :class:`InputError` for an
        unknown device.
        """
        if not cls.supports_device(device):
            raise InputError(f"there is no device {device!r}; choose CPU")
        initial = {tensor.name for tensor in model.graph.initializer}
        inputs = [value.name for value in model.graph.input if value.name not in initial]
        outputs = [value.name for value in model.graph.output]
        engine = backend_of(cls.engine)
        function = compile(from_model(read(model))[0], backend=engine if cls.cached else engine.with_cache(None))
        return GlowtrainRep(function, inputs, outputs)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run a single node of the newest operator set (or of ``opset_version``) on arrays."""
        given = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
        arrays = [np.asarray(array) for array in given]
        names = [name for name in node.input if name]
        declared = [_info(name, array) for name, array in zip(names, arrays, strict=True)]
        types = outputs_info or [(None, ())] * len(node.output)
        results = [_declared(name, *info) for name, info in zip(node.output, types, strict=True)]
        graph = helper.make_graph([node], node.op_type, declared, results)
        opsets = [helper.make_opsetid(node.domain, kwargs["opset_version"])] if "opset_version" in kwargs else None
        model = helper.make_model(graph, **({"opset_imports": opsets} if opsets else {}))
        return cls.run_model(model, arrays, device)


def _info(name: str, array: Array) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(dtype_of(array.dtype).numpy), array.shape
    )


def _declared(name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    code = TensorProto.UNDEFINED if dtype is None else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, code, shape)


is_compatible = GlowtrainBackend.is_compatible
prepare = GlowtrainBackend.prepare
run_model = GlowtrainBackend.run_model
run_node = GlowtrainBackend.run_node
supports_device = GlowtrainBackend.supports_device
