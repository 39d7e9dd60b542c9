"""What the files of PyTorch's exporters say of their initializers, and in which modules nodes are.

The dynamo exporter writes the signature of the exported program and, for values, what they are or what they were folded
from, as metadata; and for each node the text of the program's node that it was made from, whose arguments name the
parameters it read, and the modules around that node. The TorchScript exporter writes none of it, but names nodes after
the modules that they are in. Files of other origin have neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto

from glowtrain.graph.modules import path

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
PROGRAM_NODE = "pkg.torch.onnx.fx_node"
SCOPES = "pkg.torch.onnx.name_scopes"
PARAMETER = "PARAMETER"
PRODUCER = "pytorch"

_INPUT = re.compile(r"^(\w+): ([A-Z_]+) target='([^'\n]+)'", re.MULTILINE)
_QUOTED = re.compile(r"'([^']*)'")
_ARGUMENT = re.compile(r"%(\w+)")
_COMPUTED = re.compile(r"val_\d+")
"""Names of values that are not inputs of the exported program."""
_CALL = re.compile(r"_\d+$")
"""What the TorchScript exporter appends to a module's name where it is called again."""
_TEMPORARY = "onnx::"
"""How the TorchScript exporter's names of values that the module has no name for begin."""


@dataclass(frozen=True)
class Exported:
    """What a file says of values by name: which are stored in it, what they are, or what they were made of."""

    stored: frozenset[str] = frozenset()
    kinds: dict[str, str] = field(default_factory=dict)
    folded: dict[str, list[str]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    """The stored value that each input of the exported program was, by the input's name."""
    signed: bool = False
    """Whether the dynamo exporter wrote the file, with a signature."""
    traced: bool = False
    """Whether the TorchScript exporter wrote it."""

    @property
    def constants(self) -> frozenset[str]:
        """Initializers that are not parameters: buffers, constants, and what was folded from nothing but these."""
        return frozenset(name for name in self.stored if self.signed and not self._is_parameter(name))

    def _is_parameter(self, name: str) -> bool:
        """Whether a parameter is among all that a value was made of.

        Stored values of which nothing is known may be parameters. Others among the sources are those whose shapes
        went into a constant.
        """
        return any(self.kinds.get(source) == PARAMETER or self._unmarked(source) for source in self.sources_of(name))

    def _unmarked(self, name: str) -> bool:
        known = name in self.kinds or name in self.folded
        return name in self.stored and not known and not _COMPUTED.fullmatch(name)

    def sources_of(self, name: str) -> set[str]:
        """A value, and all that it was folded from."""
        waiting, seen = [name], {name}
        while waiting:
            current = waiting.pop()
            sources = () if current in self.kinds else self.folded.get(current, ())
            new = [source for source in sources if source not in seen]
            waiting += new
            seen.update(new)
        return seen

    def program_node(self, node: NodeProto) -> str:
        """The text of the program's node that a node was made from; empty if the file does not say it."""
        texts = (entry.value for entry in node.metadata_props if entry.key == PROGRAM_NODE)
        return next(texts, "") if self.signed else ""

    def arguments(self, text: str) -> list[str]:
        """The parameters and buffers among the arguments in the text of a program's node, in order."""
        names = _ARGUMENT.findall(text.partition("](")[2])
        return [self.inputs[name] for name in names if name in self.inputs]

    def passes_on(self, node: NodeProto) -> bool:
        """Whether a node stands for a parameter that had the value of another, which was left out of the file.

        The TorchScript exporter leaves an Identity under the name of each. A name that no parameter has is that of a
        transposed copy, of which a module that is called twice has two: that says nothing.
        """
        return self.traced and node.op_type == "Identity" and not node.output[0].startswith(_TEMPORARY)

    def is_in_module_of(self, node: NodeProto, name: str) -> bool:
        """Whether the TorchScript exporter says that a node is in the module whose parameter has this name."""
        scope = node.name.strip("/").split("/")[:-1]
        module = name.rpartition(".")[0]
        paths = (".".join(scope), ".".join(_CALL.sub("", part) for part in scope))
        return self.traced and node.name.startswith("/") and module in paths


def node_name(node: NodeProto) -> str:
    """A node's name; where the dynamo exporter says which module the node is in, a path that begins with it.

    The scopes are, from the outermost: the model, each with its full name the modules inside of it, the program's node.
    """
    text = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    modules = [name for name in _QUOTED.findall(text)[:-1] if name]
    return path(modules[-1], node.name) if modules else node.name


def exported(model: ModelProto) -> Exported:
    """What a model says."""
    graph = model.graph
    stored = frozenset(tensor.name for tensor in graph.initializer)
    signature = next((entry.value for entry in graph.metadata_props if entry.key == SIGNATURE), None)
    if signature is None:
        return Exported(stored, traced=model.producer_name == PRODUCER)
    inputs = _INPUT.findall(signature)
    kinds = {target: kind for _, kind, target in inputs}
    result = Exported(stored, kinds, inputs={name: target for name, _, target in inputs}, signed=True)
    for value in graph.value_info:
        for entry in value.metadata_props:
            if entry.key == KIND:
                result.kinds[value.name] = entry.value
            elif entry.key == FOLDED:
                result.folded[value.name] = _QUOTED.findall(entry.value)
    return result
