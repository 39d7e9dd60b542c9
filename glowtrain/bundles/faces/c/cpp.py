"""C++17 over the C interface: a class that owns its memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from glowtrain.bundles.faces.identifiers import named
from glowtrain.bundles.faces.templates import filled_for, template_text
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import KEYWORDS, BundleFunction, BundleTensor, parameter

TEMPLATE = "c/model.hpp"
WORDS = KEYWORDS | {"std"}
"""What no namespace is called."""


def cpp(module: BundleModule) -> str:
    """The text of ``NAME.hpp``."""
    calls = "\n\n".join(_call(module, function) for function in module.functions)
    return filled_for(module, TEMPLATE, space=named(module.name, WORDS), calls=calls)


def _call(module: BundleModule, function: BundleFunction) -> str:
    reserved = WORDS | {"hyper", "loss", *re.findall(r"\w+", template_text(TEMPLATE))}
    inputs = [(named(parameter(e.name), reserved), e) for e in function.inputs]
    outputs = [
        (named(parameter(e.name), reserved - {"loss"} if function.trains else reserved), e) for e in function.outputs
    ]
    checked = (*inputs, *(() if function.trains else outputs))
    parameters, arguments = _lists(module, function, inputs, outputs)
    what = "One step of training on a batch." if function.trains else "Predictions for a batch."
    return "\n".join(
        [
            f"// {what} Arrays are row-major, and checked for their sizes.",
            *(f"//   {name}: {e.type}" for name, e in (*inputs, *outputs)),
            f"Result {function.name}({', '.join(parameters)}) {{",
            *(
                f"  if ({name}.size() != {e.type.size}) return failed({module.name.upper()}_WRONG_SIZE);"
                for name, e in checked
            ),
            f"  return done({module.name}_{function.name}({', '.join(['&handle_', *arguments])}));",
            "}",
        ]
    )


def _lists(
    module: BundleModule,
    function: BundleFunction,
    inputs: Sequence[tuple[str, BundleTensor]],
    outputs: Sequence[tuple[str, BundleTensor]],
) -> tuple[list[str], list[str]]:
    """Parameters and what C is given for them: hyperparameters and metrics come last, as they may be left out."""
    arguments = [f"{name}.data()" for name, _ in inputs]
    parameters = [*_views(inputs, "const ")]
    if not function.trains:
        return [*parameters, *_views(outputs)], [*arguments, *(f"{name}.data()" for name, _ in outputs)]
    (name, loss), *metrics = outputs
    parameters.append(f"{loss.element.c} &{name}")
    if function.hyper:
        parameters.append(f"const {module.name}_hyper &hyper = {module.name}_defaults")
        arguments.append("&hyper")
    parameters += [f"{each.element.c} *{metric} = nullptr" for metric, each in metrics]
    return parameters, [*arguments, f"&{name}", *(metric for metric, _ in metrics)]


def _views(tensors: Sequence[tuple[str, BundleTensor]], qualifier: str = "") -> Iterator[str]:
    return (f"View<{qualifier}{e.element.c}> {name}" for name, e in tensors)
