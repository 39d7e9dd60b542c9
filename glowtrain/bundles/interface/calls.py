"""The bundle's own functions, as C calls them: they fill the table of pointers that compiled code is given."""

from __future__ import annotations

from collections.abc import Mapping

from glowtrain.backends.llvm.values import I8, I32, NULL, POINTER, LlvmValue, pointer, vector
from glowtrain.backends.table import ARENA, POOL, WORKSPACES
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.structs import CFunction
from glowtrain.bundles.signature import BundleFunction, BundleTensor


def call(interface: Interface, function: BundleFunction) -> str:
    """``NAME_step``, ``NAME_predict``, ..."""
    hyper = {"hyper": POINTER} if function.hyper else {}
    f = interface.function(
        function.name,
        handle=POINTER,
        **{each.name: POINTER for each in function.inputs},
        **hyper,
        **{each.name: POINTER for each in function.outputs},
    )
    f.passed(f.call("ready", I32, f.of["handle"]))
    if interface.memory.unknown_floats:
        f.passed(f.call("weighted", I32, f.of["handle"]))
    needed = function.inputs if function.trains else (*function.inputs, *function.outputs)
    f.present(*(each.name for each in needed if each.type.size))  # an empty vector of C++ has no address
    for each, value in zip(function.hyper, _hyper(interface, f, function).values(), strict=True):
        _check_finite(f, each, value)
    outputs = _outputs(f, function)
    _run(interface, f, function, outputs)
    if function.trains:
        loss = function.outputs[0]
        _check_finite(f, loss, outputs[loss.source])
    return f.succeeded()


def run(interface: Interface) -> str:
    """What the pool of a step runs: the caller's own way to share out work.

    The pool is the handle's last field, which holds the address of this function.
    """
    usize = interface.usize
    f, (pool, body, context, tasks, each, _) = interface.helper(
        "run", pool=POINTER, body=POINTER, context=POINTER, tasks=usize, each=usize, wake=usize
    )
    own = f.address(pool, -interface.handle.offset("run"), 1)
    parallel, user = (f.load(POINTER, f.address(own, interface.handle.offset(n), 1)) for n in ("parallel", "context"))
    arguments = ", ".join(value.typed for value in (user, body, context, tasks, each))
    f.line(f"call void {parallel}({arguments})")
    return f.finish()


def _outputs(f: CFunction, function: BundleFunction) -> dict[str, LlvmValue]:
    """Where outputs go, by their names in the model; those of a step may be null."""
    addresses = {each.source: f.of[each.name] for each in function.outputs}
    if function.trains:
        for each in function.outputs:
            room = f.buffer(each.type.nbytes, I8)
            addresses[each.source] = f.select(f.compare("eq", f.of[each.name], NULL), room, f.of[each.name])
    return addresses


def _run(interface: Interface, f: CFunction, function: BundleFunction, outputs: Mapping[str, LlvmValue]) -> None:
    pointers = [*_memory(interface, f), *_slots(interface, f, function, outputs)]
    word = interface.handle.word
    table = f.buffer(len(pointers), POINTER)
    for at, value in enumerate(pointers):
        f.store(value, f.address(table, at, word))
    f.line(f"call void @{function.code.entry}({table.typed})")


def _memory(interface: Interface, f: CFunction) -> list[LlvmValue]:
    """The first entries of the table."""
    arena = f.get(interface.handle, f.of["handle"], "arena")
    first = {ARENA: arena, WORKSPACES: f.address(arena, interface.activations, 1), POOL: _pool(interface, f)}
    return [first[at] for at in sorted(first)]


def _pool(interface: Interface, f: CFunction) -> LlvmValue:
    if interface.threads == 1:
        return NULL
    alone = f.compare("eq", f.get(interface.handle, f.of["handle"], "parallel"), NULL)
    return f.select(alone, NULL, f.address(f.of["handle"], interface.handle.offset("run"), 1))


def _slots(
    interface: Interface, f: CFunction, function: BundleFunction, outputs: Mapping[str, LlvmValue]
) -> list[LlvmValue]:
    """What lies outside of the arena."""
    inputs = {**{each.source: f.of[each.name] for each in function.inputs}, **_hyper(interface, f, function)}
    variable_slots, slots = interface.memory.by_name, list[LlvmValue]()
    variables = f.get(interface.handle, f.of["handle"], "variables")
    for slot in function.code.slots:
        if slot.kind == "constant":
            data = function.code.constants[slot.name].tobytes()
            slots.append(pointer(interface.constants.data(data, interface.memory.alignment)))
        elif slot.kind == "variable":
            slots.append(f.address(variables, variable_slots[slot.name].offset, 1))
        elif slot.kind == "unused":
            slots.append(NULL)
        else:
            slots.append((outputs if slot.kind == "output" else inputs)[slot.name])
    return slots


def _hyper(interface: Interface, f: CFunction, function: BundleFunction) -> dict[str, LlvmValue]:
    """Where hyperparameters lie: in the caller's struct, or in the defaults."""
    if not function.hyper:
        return {}
    defaults = pointer(f"@{interface.name}_defaults")
    base = f.select(f.compare("eq", f.of["hyper"], NULL), defaults, f.of["hyper"])
    return {e.source: f.address(base, interface.hyper_struct.offset(e.name), 1) for e in function.hyper}


def _check_finite(f: CFunction, number: BundleTensor, at: LlvmValue) -> None:
    """An error for NaN and infinity, whose exponents are all ones."""
    mask = number.type.dtype.exponent
    bits = f.load(vector(f"i{8 * number.type.dtype.size}"), at)
    f.require(f.compare("ne", f.op("and", bits, mask), mask), ErrorCode.NOT_FINITE)
