"""The block of a contraction that one call of a matrix kernel takes: so many matrices of A and of B, and their
shape."""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.backends.cpu.contraction.matrices.unit import REGISTERS, ROW, ROWS, WORD


@dataclass(frozen=True)
class MatrixBlock:
    """Matrices of A with so many ``rows`` each, ``columns`` of B (the last calls may take fewer), and elements of the
    sum that each ``step`` takes.

    Registers hold the sums, then all matrices of the operand that has fewer, then two of the other, which take turns.
    """

    rows: tuple[int, ...]
    columns: int
    step: int

    @property
    def stationary(self) -> str:
        """The operand whose matrices stay in registers for a step."""
        return "a" if len(self.rows) <= self.columns else "b"

    @property
    def _counts(self) -> tuple[int, int]:
        few, many = sorted((len(self.rows), self.columns))
        return few, min(many, 2)

    @property
    def fits(self) -> bool:
        """Whether there are registers enough; those in which matrices take turns have one shape each."""
        turns = self.stationary == "a" or len(set(self.rows)) == 1
        return turns and len(self.rows) * self.columns + sum(self._counts) <= REGISTERS

    def sums(self, row: int, column: int) -> int:
        """The register of the sums of a matrix of A with one of B."""
        return row * self.columns + column

    def register(self, operand: str, at: int) -> int:
        """The register of a matrix of an operand."""
        first = len(self.rows) * self.columns
        return first + at if operand == self.stationary else first + self._counts[0] + at % 2

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The rows and the bytes of a row of each register."""
        sums = [(rows, ROW) for rows in self.rows for _ in range(self.columns)]
        a, b = [(rows, self.step) for rows in self.rows], [(self.step // WORD, ROW)] * self.columns
        fixed, alternating = (a, b) if self.stationary == "a" else (b, a)
        return (*sums, *fixed, *alternating[:2])


def shares(extent: int) -> tuple[int, ...]:
    """Rows cut into the fewest matrices, as equal as possible."""
    count = -(-extent // ROWS)
    small, larger = divmod(extent, count)
    return (small + 1,) * larger + (small,) * (count - larger)


def step_of(extent: int, *, padded: bool) -> int:
    """Elements of a sum that a step takes: whole words, as equal as steps can be, as few steps as there can be; 0 where
    there is no word. ``padded``: a few bytes behind the last one may be read."""
    steps = -(-extent // ROW)
    size = -(-extent // (steps * WORD)) * WORD
    return size if padded or size <= extent else extent // WORD * WORD


def begins(extent: int, step: int) -> list[int]:
    """Where the steps of a sum begin. The last one begins earlier where steps do not end with the sum, so that nothing
    behind it is read (but by a single one): B holds zeros where it is at what was summed before."""
    return [min(at, max(extent - step, 0)) for at in range(0, extent, step)]
