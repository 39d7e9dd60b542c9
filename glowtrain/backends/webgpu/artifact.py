"""What is left of a graph once it is compiled to WGSL, and as a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glowtrain.backends.base import Artifact, Types
from glowtrain.backends.container import pack, unpack
from glowtrain.backends.webgpu.kernels import WgslModule
from glowtrain.backends.webgpu.step import Dispatch, Region, WgslCode
from glowtrain.errors import ArtifactError
from glowtrain.presentation.messages import plural
from glowtrain.types import Array, parse_type

KIND = "webgpu"


@dataclass(frozen=True)
class WgslArtifact(Artifact):
    """Modules in WGSL and their dispatches: for any adapter."""

    code: WgslCode

    def fits(self, inputs: Types, variables: Types, outputs: Types) -> bool:
        own = ({region.name: region.type for region in regions} for regions in (self.code.inputs, self.code.outputs))
        return [*own, dict(self.code.variables)] == [
            {name: type_ for name, type_ in inputs.items() if name in {r.name for r in self.code.inputs}},
            dict(outputs),
            {name: type_ for name, type_ in variables.items() if name in self.code.variables},
        ]

    @property
    def in_numbers(self) -> str:
        """It in a few words."""
        code = self.code
        lines = sum(module.text.count("\n") for module in code.modules)
        modules = plural(len(code.modules), "module")
        return f"{modules} of {plural(lines, 'line')} in WGSL, run {plural(len(code.dispatches), 'time')}"

    def to_bytes(self) -> bytes:
        code = self.code
        facts = {
            "modules": [asdict(module) for module in code.modules],
            "dispatches": [[each.module, each.grid, each.arguments] for each in code.dispatches],
            "inputs": _listed(code.inputs),
            "outputs": _listed(code.outputs),
            "variables": {name: str(type_) for name, type_ in code.variables.items()},
            "arena": code.arena,
            "work": code.work,
        }
        return pack(KIND, {"constants": code.contents}, facts)

    @classmethod
    def from_bytes(cls, data: bytes) -> WgslArtifact:
        """Read :meth:`to_bytes`. Raises :class:`ArtifactError` for anything else."""
        arrays, facts = unpack(KIND, data)
        try:
            return cls(_read(arrays, facts))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"compiled code does not say all that it should: {error!r}") from None

    def __str__(self) -> str:
        code = self.code
        lines = [f"{self.in_numbers}; arena {code.arena:,} bytes"]
        lines += [f"{n:>4}  {code.modules[each.module].entry} {each.grid}" for n, each in enumerate(code.dispatches)]
        return "\n".join(lines) + "\n"


def _listed(regions: tuple[Region, ...]) -> list[list[Any]]:
    return [[region.name, str(region.type), region.offset] for region in regions]


def _read(arrays: dict[str, Array], facts: dict[str, Any]) -> WgslCode:
    def regions(kind: str) -> tuple[Region, ...]:
        return tuple(Region(name, parse_type(text), offset) for name, text, offset in facts[kind])

    return WgslCode(
        tuple(WgslModule(**module) for module in facts["modules"]),
        tuple(Dispatch(at, (grid[0], grid[1]), tuple(arguments)) for at, grid, arguments in facts["dispatches"]),
        regions("inputs"),
        regions("outputs"),
        {name: parse_type(text) for name, text in facts["variables"].items()},
        facts["arena"],
        facts["work"],
        arrays["constants"],
    )
