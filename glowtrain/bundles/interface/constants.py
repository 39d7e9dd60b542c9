"""Constants of a bundle's module: bytes, texts, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glowtrain.backends.llvm.values import LlvmValue

_HEXADECIMAL = [f"\\{byte:02X}" for byte in range(256)]


class Constants:
    """Constants of a module under construction; equal ones are there once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[str, int], str] = {}

    def data(self, content: bytes, alignment: int = 1) -> str:
        """The name of bytes that lie at a multiple of ``alignment``."""
        escaped = "".join(map(_HEXADECIMAL.__getitem__, content))
        return self._of(f'[{len(content)} x i8] c"{escaped}"', alignment)

    def text(self, text: str) -> str:
        """The name of a text that ends with a zero."""
        return self.data(text.encode() + b"\0")

    def numbers(self, numbers: Sequence[int]) -> str:
        """The name of 32-bit integers."""
        return self._of(f"[{len(numbers)} x i32] [{', '.join(f'i32 {number}' for number in numbers)}]", 4)

    def export(self, name: str, value: str) -> None:
        """A constant that others see."""
        self.lines.append(f"@{name} = constant {value}")

    def _of(self, value: str, alignment: int) -> str:
        if (value, alignment) not in self._known:
            name = f"@constant.{len(self._known)}"
            self._known[value, alignment] = name
            self.lines.append(f"{name} = private unnamed_addr constant {value}, align {alignment}")
        return self._known[value, alignment]


def structured(operands: Iterable[LlvmValue | str]) -> str:
    """A struct of typed operands, as a constant."""
    typed = [each if isinstance(each, str) else each.typed for each in operands]
    return f"{{ {', '.join(each.split(' ')[0] for each in typed)} }} {{ {', '.join(typed)} }}"
