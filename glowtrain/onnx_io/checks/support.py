"""What is supported of ONNX, as a table made from the registry: nothing in it is written by hand.

Element types are tried: a type is listed if the operator's own samples pass ``infer`` and ``reference`` in it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from onnx import defs

from glowtrain.errors import GlowtrainError
from glowtrain.graph import Operator, Sample, lookup, registered
from glowtrain.graph.operator import as_tuple
from glowtrain.onnx_io.host import IMAGES
from glowtrain.onnx_io.read.rules import functions, tabular
from glowtrain.onnx_io.read.rules.table import RULES
from glowtrain.onnx_io.read.source import OLDEST_OPSET
from glowtrain.onnx_io.read.string_labels import MAPS
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.onnx_io.write.encodings import formal_type
from glowtrain.types import DTYPES, Array, DType, TensorType, type_of

DOMAINS = {
    "": "ai.onnx",
    "ai.onnx.ml": "ai.onnx.ml",
    "ai.onnx.preview": "ai.onnx.preview",
    "ai.onnx.preview.training": "ai.onnx.preview.training",
    "com.microsoft": "com.microsoft",
    "glowtrain": "glowtrain: what ONNX lacks",
}
"""The domains of the table, with their titles."""
COLUMNS = ("operator", "opset", "element types", "forward", "gradient", "quantized", "notes")
_GROUPS = {
    "floats": ("f64", "f32", "f16", "bf16"),
    "ints": ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"),
    "8-bit floats": ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"),
}
_REFUSALS = (GlowtrainError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What operators raise on element types that they do not take."""

Samples = Callable[[type[Operator]], Iterable[Sample]]


@dataclass(frozen=True)
class Row:
    """One operator's line."""

    name: str
    opset: str
    dtypes: str
    forward: str
    gradient: str
    quantized: str
    notes: str

    def line(self) -> str:
        cells = (self.name, self.opset, self.dtypes, self.forward, self.gradient, self.quantized, self.notes)
        return "| " + " | ".join(cell or "–" for cell in cells) + " |"


def table(samples: Samples) -> str:
    """The whole page, as Markdown. ``samples`` gives uses of an operator to try element types on."""
    sections = [section for domain in DOMAINS for section in _section(domain, samples)]
    return "\n".join((_HEAD, *sections, _unsupported()))


_HEAD = f"""# Operator support

Made by `glowtrain operators --output docs/operator-support.md` from the registry of operators; a test keeps it up to
date. What an operator means is in [ONNX's specification](https://onnx.ai/onnx/operators/), how one is added in
[operators.md](operators.md); `glowtrain conformance` says which of ONNX's own tests pass.

- **opset**: versions that can be loaded; models older than opset {OLDEST_OPSET} of ai.onnx cannot.
- **element types** of the main operand or result; floats are {", ".join(_GROUPS["floats"])}, ints
  all widths from 8 to 64.
- **forward**: *loop nest* (compiled directly), *decomposition* (into operators that are), *subgraph* (compiled as a
  loop), *constant* (known when compiling), *on load* (gone once the model is loaded), *definition* (ONNX's own, built
  in its place).
- **gradient**: *rule*, *parts* (through the operators that it is made of), or – where there is none.
- **quantized**: integer operators that stand for it.
"""


def _section(domain: str, samples: Samples) -> Iterator[str]:
    rows = [_row(domain, name, samples) for name in sorted(_names(domain), key=str.lower)]
    if rows:
        yield f"## {DOMAINS[domain]}\n"
        yield "| " + " | ".join(COLUMNS) + " |"
        yield "|---" * len(COLUMNS) + "|"
        yield from (row.line() for row in rows)
        yield ""


def _names(domain: str) -> set[str]:
    """Supported operators of a domain, without its prefix."""
    found = {cls.onnx for cls in registered() if cls.domain == domain and not _stands_for(cls)}
    prefix = f"{domain}." if domain else ""
    for key in RULES:
        if _domain_of(key) == domain and key not in tabular.REFUSED:
            found.add(key.removeprefix(prefix))
    return found | ({cls.onnx for cls in registered() if _stands_for(cls)} if not domain else set())


def _domain_of(key: str) -> str:
    return key.rpartition(".")[0]


def _stands_for(cls: type[Operator]) -> bool:
    """Whether one of Glowtrain's operators is an ONNX operator whose result's size is found at run time."""
    return cls.domain == "glowtrain" and cls.has("data_dependent_sizes") and defs.has(cls.onnx)


def _row(domain: str, name: str, samples: Samples) -> Row:
    key = f"{domain}.{name}" if domain else name
    cls = lookup(key)
    if cls is None and not domain:
        cls = lookup(f"glowtrain.{name}")
    if cls is None:
        body = RULES[key] is functions.built
        note = "" if body else _first_line(RULES[key]).removeprefix(f"{name}: ")
        return Row(name, _opsets(domain, name), "", "definition" if body else "on load", "parts", _twins(name), note)
    gradient = "rule" if cls.has("vjp") or cls.control else "parts"
    return Row(
        name,
        _opsets(domain, name),
        _dtypes(cls, samples(cls)),
        _forward(cls),
        gradient if cls.differentiable else "",
        _twins(name) if not domain else "",
        "; ".join(_notes(cls)),
    )


def _first_line(rule: object) -> str:
    return (inspect.getdoc(rule) or "").partition("\n")[0].rstrip(".")


def _opsets(domain: str, name: str) -> str:
    """The oldest version that can be loaded and the newest."""
    found = _versions().get((domain, name))
    if not found:
        return "" if domain == "glowtrain" else "1"
    oldest = min(found)
    newest = defs.onnx_opset_version() if not domain else max(found)
    oldest = max(oldest, OLDEST_OPSET) if not domain else oldest
    return str(oldest) if oldest == newest else f"{oldest}–{newest}"


@cache
def _versions() -> dict[tuple[str, str], list[int]]:
    """The versions in which every operator changed, by domain and name."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        found[schema.domain, schema.name].append(schema.since_version)
    return found


def _forward(cls: type[Operator]) -> str:
    if cls.from_type:
        return "constant"
    if cls.control:
        return "subgraph"
    if cls.has("lower"):
        return "loop nest"
    return "decomposition" if cls.has("decompose") else "interpreter only"


def _twins(name: str) -> str:
    """Integer operators in the registry that stand for one on floats."""
    names = (f"QLinear{name}", f"{name}Integer", f"Q{name}", f"DynamicQuantize{name}", f"{name}Integer16")
    keys = (key for candidate in names for key in (candidate, f"com.microsoft.{candidate}"))
    return ", ".join(dict.fromkeys(cls.onnx for cls in map(lookup, keys) if cls is not None))


def _notes(cls: type[Operator]) -> Iterator[str]:
    known = list(static_inputs(cls).values())
    if known:
        yield f"known when compiling: {', '.join(known)}"
    if cls.has("data_dependent_sizes"):
        yield "the result's size is found at run time"
    if cls.random:
        yield "counter-based random numbers"
    if not cls.differentiable:
        yield cls.reason


def _dtypes(cls: type[Operator], samples: Iterable[Sample]) -> str:
    """The element types that samples can be had in, in groups where a whole group can."""
    allowed = _allowed(cls)
    names = {dtype.name for sample in samples for dtype in _accepted(sample, allowed)}
    shown = []
    for group, members in _GROUPS.items():
        if names.issuperset(members):
            shown.append(group)
            names -= set(members)
    return ", ".join([*shown, *(name for name in DTYPES if name in names)])


def _allowed(cls: type[Operator]) -> list[DType]:
    """The element types that ONNX's definition allows anywhere; all of at least a byte where there is none."""
    if not defs.has(cls.onnx, domain="" if _stands_for(cls) else cls.domain):
        return [DTYPES[name] for name in (*_GROUPS["floats"], *_GROUPS["ints"], "bool")]
    schema = defs.get_schema(cls.onnx, "" if _stands_for(cls) else cls.domain)
    types = {type_ for entry in (*schema.inputs, *schema.outputs) for type_ in entry.types}
    return [dtype for dtype in DTYPES.values() if formal_type(dtype) in types]


def _accepted(sample: Sample, allowed: Sequence[DType]) -> Iterator[DType]:
    """Those element types that the first operand, or the operands of the result's type, can have."""
    types = [None if array is None else type_of(np.asarray(array)) for array in sample.inputs]
    first = next((type_.dtype for type_ in types if type_ is not None), None)
    if first is None:
        return
    result = sample.operator.infer(*types)
    main = result.dtype if isinstance(result, TensorType) else result[0].dtype
    for replaced in {first, main if any(t is not None and t.dtype == main for t in types) else first}:
        yield from (dtype for dtype in allowed if _runs(sample, replaced, dtype))


def _runs(sample: Sample, before: DType, after: DType) -> bool:
    """Whether a sample can be typed and run with another element type."""
    try:
        with np.errstate(all="ignore"):
            arrays = [None if array is None else _as_type(np.asarray(array), before, after) for array in sample.inputs]
            inferred = sample.operator.infer(*(None if array is None else type_of(array) for array in arrays))
            given = sample.operator.reference(*arrays)
    except _REFUSALS:
        return False
    results, wanted = as_tuple(given), as_tuple(inferred)
    given_types = [np.asarray(array).dtype for array in results]
    return given_types == [type_.dtype.numpy for type_ in wanted]


def _as_type(array: Array, before: DType, after: DType) -> Array:
    if array.dtype != before.numpy or before == after:
        return array
    narrow = before.size == after.size == 1
    return (array.astype(np.float32) if narrow else array).astype(after.numpy)


def _unsupported() -> str:
    """The operators of ONNX that are not compiled: those that run on the host, and those that cannot be loaded."""
    host: list[str] = []
    lines: list[str] = []
    for schema in sorted(defs.get_all_schemas(), key=lambda schema: (schema.domain, schema.name)):
        key = f"{schema.domain}.{schema.name}" if schema.domain else schema.name
        known = schema.name in _names(schema.domain) if schema.domain in DOMAINS else False
        if known or schema.deprecated:
            continue
        if key == IMAGES or key in MAPS or _is_of_strings(schema):
            host.append(f"- `{key}`")
        else:
            lines.append(f"- `{key}`: {tabular.REFUSED[key]}" if key in tabular.REFUSED else f"- `{key}`")
    return "\n".join((_HOST, *host, "", "## Not supported\n", *lines, ""))


_HOST = """## On the host

Where they have strings, these and others (`Equal`, `Cast`, `Identity`, `ai.onnx.ml.LabelEncoder`, ...) run
[before or after](loading.md#strings-and-encoded-images) what is compiled, by the `onnx` package:
"""


def _is_of_strings(schema: defs.OpSchema) -> bool:
    formal: Sequence[defs.OpSchema.FormalParameter] = (*schema.inputs, *schema.outputs)
    return any(all(type_ == "tensor(string)" for type_ in entry.types) for entry in formal)
