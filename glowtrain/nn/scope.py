"""Where layers find their variables: names by scope, values by seed and name, the same ones for every binding."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np

from glowtrain.errors import BindingError, GraphError, InputError, ShapeError, UnpicklableError
from glowtrain.graph import Binding, Graph, Input, Template, Value, Variable
from glowtrain.nn.checks import check_extents
from glowtrain.nn.initializers import FanIn, Initializer, Request, zeros
from glowtrain.presentation.messages import kind_of
from glowtrain.types import Array, DType, LazyArray, Shape, Spec, TensorType, f32

LARGE = 1 << 30
"""Elements from which on a failure to fill a parameter is put down to its size."""

ModelFunction = Callable[..., Any]
"""From values to a value, or to values by name."""


@dataclass
class VariableStore:
    """The variables of a model, by name; they outlive one build, so that all bindings share them."""

    seed: int
    variables: dict[str, Variable] = field(default_factory=dict)


@dataclass
class _Building:
    """One run of a model function."""

    store: VariableStore
    prefix: str = ""
    made: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


_current: ContextVar[_Building | None] = ContextVar("glowtrain_nn_building", default=None)


def model(*, seed: int = 0, **inputs: Spec | TensorType) -> Callable[[ModelFunction], Template]:
    """Decorator: a function from values to a value, or to outputs by name, becomes a :class:`Template`.

    ``inputs`` declares the function's arguments: ``x=f32["batch", 784]``. ``seed`` fixes the initial values of the
    variables, which are the same for every binding of the symbolic dimensions. A single result is called ``output``.
    """
    if not inputs:
        raise InputError('declare the inputs of the model: @gt.model(x=gt.f32["batch", 784])')
    given: Mapping[str, object] = inputs
    wrong = [f"{name}={spec!r}" for name, spec in given.items() if not isinstance(spec, (Spec, TensorType))]
    if wrong:
        raise InputError(
            f'@gt.model({", ".join(wrong)}): inputs are declared by their types, such as gt.f32["batch", 784]'
        )
    specs = {name: Spec(spec.dtype, tuple(spec.shape)) for name, spec in inputs.items()}

    def decorate(function: ModelFunction) -> Template:
        _check_arguments(function, list(specs))
        return Template(function.__name__, specs, ModelBuild(function, specs, VariableStore(seed)))

    return decorate


_BY_PATH = ".build.by_path"
"""From the name of a model to its function."""


@dataclass(frozen=True, eq=False)
class ModelBuild:
    """Builds the graphs of a decorated function. It is pickled by the function's name, as functions are."""

    function: ModelFunction
    specs: Mapping[str, Spec]
    store: VariableStore

    def __call__(self, binding: Binding) -> Graph:
        return _build(self.function, self.specs, self.store, binding.dims)

    def __reduce__(self) -> tuple[Callable[..., ModelBuild], tuple[Any, ...]]:
        module, name = self.function.__module__, self.function.__qualname__.removesuffix(_BY_PATH)
        found = _named_build(module, name)
        by_value = module == "__main__" and isinstance(self.function, FunctionType) and "<" not in name
        if by_value and found in (self, None):
            return _build_of, (self.by_path, self.specs, self.store.seed)
        if found is not self:
            raise UnpicklableError(
                f"model {name}: pickle cannot find it by its name in {module}; decorate a function at the top of a "
                "module, under its own name, or bind its dimensions, save the graph (gt.save) and load that (gt.load)"
            )
        return load_build, (module, name)

    @cached_property
    def by_path(self) -> ModelFunction:
        """The function, with its path past the template that took its name: so pickle finds it, and what pickles the
        functions of ``__main__`` by value, as cloudpickle for the workers of joblib, sends it whole."""
        own = self.function
        assert isinstance(own, FunctionType)
        copy = FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
        copy.__kwdefaults__ = own.__kwdefaults__
        copy.__qualname__ = own.__qualname__.removesuffix(_BY_PATH) + _BY_PATH
        return copy


def _build_of(function: ModelFunction, specs: Mapping[str, Spec], seed: int) -> ModelBuild:
    """What builds the model of a function: that of this process, where pickle found the function in it."""
    found = _named_build(function.__module__, function.__qualname__.removesuffix(_BY_PATH))
    if found is not None and found.by_path is function:
        return found
    return ModelBuild(function, specs, VariableStore(seed))


def load_build(module: str, name: str) -> ModelBuild:
    """What builds the model that a module has under a name. Raises :class:`UnpicklableError` if there is none."""
    import_module(module)
    found = _named_build(module, name)
    if found is None:
        raise UnpicklableError(f"{module} has no model {name} in this process (a function under @gt.model)")
    return found


def _named_build(module: str, name: str) -> ModelBuild | None:
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    build = getattr(found, "build", None)
    return build if isinstance(build, ModelBuild) else None


def _check_arguments(function: ModelFunction, names: Sequence[str]) -> None:
    """Raise :class:`InputError` unless a function can be called with the declared inputs by name."""
    signature = inspect.signature(function)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        taken, declared = ", ".join(signature.parameters), ", ".join(names)
        fault = f"{function.__name__}({taken}) does not fit the inputs that @gt.model declares ({declared})"
        raise InputError(f"{fault}: {error}") from None


@contextmanager
def build(seed: int = 0) -> Iterator[VariableStore]:
    """Layers may be called inside: for graphs that are put together by hand rather than by :func:`model`."""
    store = VariableStore(seed)
    with _building(_Building(store)):
        yield store


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Names of the variables made inside begin with ``name.``; a repeated name gets a number."""
    building = _active(f"scope({name!r})")
    outer, building.prefix = building.prefix, unique(name) + "."
    try:
        yield
    finally:
        building.prefix = outer


def unique(name: str) -> str:
    """The full name of a layer called ``name`` in the present scope: the second one is ``name2``."""
    building = _active(name)
    full = building.prefix + name
    building.counts[full] += 1
    return full if building.counts[full] == 1 else f"{full}{building.counts[full]}"


def parameter(
    name: str,
    shape: Shape,
    initializer: Initializer | None = None,
    *,
    fans: tuple[int, int] | None = None,
    dtype: DType = f32,
) -> Variable:
    """A trainable variable in the present scope. ``fans`` = (fan_in, fan_out); from a matrix's shape unless given."""
    return _variable(name, shape, initializer or FanIn(), fans, dtype, trainable=True)


def buffer(name: str, shape: Shape, initializer: Initializer = zeros, *, dtype: DType = f32) -> Variable:
    """State that no optimizer changes, such as running statistics."""
    return _variable(name, shape, initializer, None, dtype, trainable=False)


def _variable(
    name: str, shape: Shape, initializer: Initializer, fans: tuple[int, int] | None, dtype: DType, *, trainable: bool
) -> Variable:
    building = _active(f"parameter({name!r})")
    full = building.prefix + name
    if full in building.made:
        raise GraphError(f"parameter {full!r} is made twice; give one another name, or make it once and use it twice")
    building.made.add(full)
    _check_shape(f"parameter {full!r}", shape)
    wanted = TensorType(dtype, tuple(shape))
    known = building.store.variables.get(full)
    if known is None:
        initial = _initial(
            initializer, Request(building.store.seed, full, wanted.shape, *(fans or _fans(shape))), wanted
        )
        known = building.store.variables[full] = Variable(full, initial, trainable)
    if known.type != wanted:
        rule = "a parameter's shape must not depend on a symbolic dimension"
        raise BindingError(f"parameter {full!r} is {known.type} in one binding and {wanted} in another: {rule}")
    return known


def _check_shape(what: str, shape: object) -> None:
    if not isinstance(shape, (tuple, list)):
        instead = "for given values, make gt.Variable(name, array) above the model's function and use it there"
        raise ShapeError(f"{what}: its shape must be a tuple, such as (784, 10), not {kind_of(shape)}; {instead}")
    check_extents(what, 0, shape=shape)


def _initial(initializer: Initializer, request: Request, type_: TensorType) -> Array | LazyArray:
    """Initial values, drawn when they are wanted where that gives the same ones each time; at once where memory may not
    hold them."""
    if initializer.repeatable and type_.size < LARGE:
        return LazyArray(type_, partial(_filled, initializer, request, type_))
    return _filled(initializer, request, type_)


def _filled(initializer: Initializer, request: Request, type_: TensorType) -> Array:
    """Initial values. Raises :class:`ShapeError` for more than memory holds."""
    try:
        return np.asarray(initializer(request).astype(type_.dtype.numpy))
    except (MemoryError, ValueError) as error:
        if type_.size < LARGE:
            raise
        raise ShapeError(f"parameter {request.name!r}: {type_} takes {type_.nbytes:,} bytes: {error}") from None


def _build(function: ModelFunction, specs: Mapping[str, Spec], store: VariableStore, dims: Mapping[str, int]) -> Graph:
    inputs = tuple(Input(spec.bind(dict(dims)), name) for name, spec in specs.items())
    with _building(_Building(store)):
        result = function(**{value.name: value for value in inputs})
    outputs = dict(result) if isinstance(result, Mapping) else {"output": result}
    wrong = [f"{name!r} is a {type(value).__name__}" for name, value in outputs.items() if not isinstance(value, Value)]
    if wrong:
        raise GraphError(f"{function.__name__} must return a Value or a dict of them; {', '.join(wrong)}")
    return Graph(inputs, outputs, {}, function.__name__)


@contextmanager
def _building(building: _Building) -> Iterator[None]:
    token = _current.set(building)
    try:
        yield
    finally:
        _current.reset(token)


def _active(what: str) -> _Building:
    building = _current.get()
    if building is None:
        advice = "call it in a function decorated with @gt.model(...), or inside `with gt.nn.build(seed=0):`"
        raise GraphError(f"{what} makes variables, and there is no place for them here; {advice}")
    return building


def _fans(shape: Shape) -> tuple[int, int]:
    """A matrix is [inputs, outputs]; a vector counts as one of its own."""
    return (shape[0], shape[-1]) if shape else (1, 1)
