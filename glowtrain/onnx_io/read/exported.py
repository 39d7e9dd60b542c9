"""What the files of PyTorch's dynamo exporter say of their initializers.

The exporter writes the signature of the exported program and, for values, what they are or what they were folded from,
as metadata. Files of other origin have none of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from onnx import GraphProto

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
PARAMETER = "PARAMETER"

_INPUT = re.compile(r"^\w+: ([A-Z_]+) target='([^'\n]+)'", re.MULTILINE)
_QUOTED = re.compile(r"'([^']*)'")
_COMPUTED = re.compile(r"val_\d+")
"""Names of values that are not inputs of the exported program."""


def exported_constants(graph: GraphProto) -> frozenset[str]:
    """Initializers that are not parameters: buffers, constants, and what was folded from nothing but these."""
    signature = next((entry.value for entry in graph.metadata_props if entry.key == SIGNATURE), None)
    if signature is None:
        return frozenset()
    stored = frozenset(tensor.name for tensor in graph.initializer)
    origins = _Origins(stored, {target: kind for kind, target in _INPUT.findall(signature)})
    for value in graph.value_info:
        for entry in value.metadata_props:
            if entry.key == KIND:
                origins.kinds[value.name] = entry.value
            elif entry.key == FOLDED:
                origins.folded[value.name] = _QUOTED.findall(entry.value)
    return frozenset(name for name in stored if not origins.is_parameter(name))


@dataclass
class _Origins:
    """What is known of values by name: which are stored in the file, what they are, or what they were made of."""

    stored: frozenset[str]
    kinds: dict[str, str]
    folded: dict[str, list[str]] = field(default_factory=dict)

    def is_parameter(self, name: str) -> bool:
        """Whether a parameter is among all that a value was made of.

        Stored values of which nothing is known may be parameters. Others among the sources are those whose shapes
        went into a constant.
        """
        waiting, seen = [name], {name}
        while waiting:
            current = waiting.pop()
            sources = [] if current in self.kinds else self.folded.get(current)
            unmarked = current in self.stored and current not in self.kinds and sources is None
            if self.kinds.get(current) == PARAMETER or (unmarked and not _COMPUTED.fullmatch(current)):
                return True
            new = [source for source in sources or () if source not in seen]
            waiting += new
            seen.update(new)
        return False
