"""The C header of a bundle: the whole of its interface, with what it needs and how it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.faces.templates import filled_for
from glowtrain.bundles.memory import VariableSlot
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor, hyper_of, parameter
from glowtrain.version import __version__


def header(module: BundleModule) -> str:
    """The text of ``NAME.h``. C99, C++ as well."""
    return filled_for(
        module,
        "c/model.h",
        about=f"{module.name}: a network that {_does(module)}, for {module.target.name}, by Glowtrain {__version__}",
        needs=module.target.needs or "nothing: no library, no heap, no other symbol",
        threads=module.threads,
        codes=[f"{module.name.upper()}_{code.name} = {code.value}, /* {code.text} */" for code in ErrorCode],
        and_variables=", and its variables what they are at the start" if module.memory.slots else "",
        listed=_commented("\n".join(_listed(module.memory.slots))),
        unknown=": parameters and statistics are NaN before they are set or loaded" if module.memory.unknown else "",
        hyper=[
            f"{each.element.c} {each.name}; /* {module.hyper[each.name]:g} */" for each in hyper_of(module.functions)
        ],
        functions=[_function(module.name, function) for function in module.functions],
    )


def _does(module: BundleModule) -> str:
    return " and ".join("trains" if function.trains else "predicts" for function in module.functions)


def _listed(slots: Sequence[VariableSlot]) -> Iterator[str]:
    for number, slot in enumerate(slots):
        yield f"  {number:>4}  {slot.role:<9}  {visible(slot.name)}: {slot.type}"


def _function(name: str, function: BundleFunction) -> str:
    step = "One step of training on a batch; `hyper` may be null (the defaults), and so may `loss`."
    what = step if function.trains else "Predictions for a batch."
    lines = _commented("\n".join(f"   {_told(each)}" for each in (*function.inputs, *function.outputs)))
    hyper = [f"const {name}_hyper *hyper"] if function.hyper else []
    parameters = ", ".join(
        [f"{name}_handle *handle", *_pointers(function.inputs, "const "), *hyper, *_pointers(function.outputs)]
    )
    return f"""/* {what}
 *
{lines}
 */
uint32_t {name}_{function.name}({parameters});
"""


def _told(tensor: BundleTensor) -> str:
    """An input or output, with its name in the model where that is another."""
    source = f" ({visible(tensor.source)})" if tensor.source != tensor.name else ""
    return f"{parameter(tensor.name)}: {tensor.type}{source}"


def _pointers(tensors: Sequence[BundleTensor], qualifier: str = "") -> Iterator[str]:
    return (f"{qualifier}{each.element.c} *{parameter(each.name)}" for each in tensors)


def visible(name: str) -> str:
    """A name in one line whose letters stand in the order in which they are read: others are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def _commented(text: str) -> str:
    """Lines of a comment, which names in them do not end."""
    return "\n".join(f" *{line}" for line in text.replace("*/", "* /").replace("/*", "/ *").splitlines())
