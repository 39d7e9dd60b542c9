"""Affine expressions of subscripts and addresses, with exact static ranges.

A subscript is brought into the value constant + sum(coefficient * atom). Atoms are loop indices and what is not affine
(quotients, remainders, loaded values). Quotients and remainders by constants are resolved by ranges, and a quotient
and a remainder of the same dividend recombine; so the reshapes and transposes that lowering writes as index
arithmetic vanish from addresses.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from glowtrain.loops.language import Apply, Const, Expr, Index, Load, call
from glowtrain.types import i64

Range = tuple[int, int]
_UNKNOWN: Range = (-(1 << 62), 1 << 62)


@dataclass(frozen=True)
class Quotient:
    """floor(dividend / divisor), an atom."""

    dividend: Affine
    divisor: int


@dataclass(frozen=True)
class Remainder:
    """dividend modulo divisor (sign of the divisor), an atom."""

    dividend: Affine
    divisor: int


Atom = Expr | Quotient | Remainder


@dataclass(frozen=True)
class Affine:
    """constant + sum(coefficient * atom); atoms in order of first appearance, no zero coefficients."""

    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Affine) -> Affine:
        return self._plus(other, 1)

    def __sub__(self, other: Affine) -> Affine:
        return self._plus(other, -1)

    def _plus(self, other: Affine, factor: int) -> Affine:
        """The sum with another one times a factor, with quotients and remainders recombined."""
        if not other.terms:
            return Affine(self.constant + other.constant * factor, self.terms)
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
        return _sum(self.constant + other.constant * factor, terms)

    def scale(self, factor: int) -> Affine:
        if factor == 1:
            return self
        terms = tuple([(atom, coefficient * factor) for atom, coefficient in self.terms]) if factor else ()
        return Affine(self.constant * factor, terms)

    def coefficient(self, atom: Atom) -> int:
        for each, coefficient in self.terms:
            if each == atom:
                return coefficient
        return 0

    @property
    def is_linear(self) -> bool:
        """Only loop indices occur."""
        return all(isinstance(atom, Index) for atom, _ in self.terms)

    @property
    def of_indices(self) -> bool:
        """Only loop indices occur, also in quotients and remainders."""
        return all(_without(atom, frozenset()) for atom, _ in self.terms)

    def linear_in(self, indices: Set[Index]) -> bool:
        """Whether these indices occur linearly or not at all; others may also occur in quotients and remainders."""
        return all(isinstance(atom, Index) or _without(atom, indices) for atom, _ in self.terms)

    def step(self, index: Expr) -> int:
        """The difference between its values where ``index`` is 1 and 0, and all other indices are 0."""
        return self._at(index, 1) - self._at(index, 0)

    def _at(self, index: Expr, value: int) -> int:
        """Its value there; it is one :attr:`of_indices`."""
        total = self.constant
        for atom, coefficient in self.terms:
            match atom:
                case Quotient(dividend=dividend, divisor=divisor):
                    total += coefficient * (dividend._at(index, value) // divisor)
                case Remainder(dividend=dividend, divisor=divisor):
                    total += coefficient * (dividend._at(index, value) % divisor)
                case _ if atom == index:
                    total += coefficient * value
        return total

    def range(self) -> Range:
        """Smallest and largest value over all index values."""
        low = high = self.constant
        for atom, coefficient in self.terms:
            first, last = (0, atom.extent - 1) if isinstance(atom, Index) else _atom_range(atom)
            one, other = first * coefficient, last * coefficient
            low, high = (low + one, high + other) if one < other else (low + other, high + one)
        return max(low, _UNKNOWN[0]), min(high, _UNKNOWN[1])


def _without(atom: Atom, indices: Set[Index]) -> bool:
    """Whether an atom is a quotient or remainder of indices, and of none of these."""
    match atom:
        case Index():
            return atom not in indices
        case Quotient(dividend=dividend) | Remainder(dividend=dividend):
            return all(_without(inner, indices) for inner, _ in dividend.terms)
    return False


def affine(expr: Expr) -> Affine:
    """The affine form of an integer expression (anything else becomes an atom)."""
    if isinstance(expr, Apply):
        return _remembered(expr)
    if isinstance(expr, Const):
        return Affine(int(expr.value))
    if isinstance(expr, Index) and expr.extent == 1:
        return Affine(0)
    return Affine(0, ((expr, 1),))


def _remembered(expr: Apply) -> Affine:
    """The affine expression of a function's result: computed once, as expressions never change."""
    try:
        value: Affine = expr.affine
    except AttributeError:
        value = _applied(expr)
        object.__setattr__(expr, "affine", value)
    return value


def _applied(expr: Apply) -> Affine:
    match expr.function, expr.arguments:
        case "add", (a, b):
            return affine(a) + affine(b)
        case "sub", (a, b):
            return affine(a) - affine(b)
        case "neg", (a,):
            return affine(a).scale(-1)
        case "mul", (a, b):
            return _product(expr, affine(a), affine(b))
        case "div" | "mod" as function, (a, Const(value=divisor)) if int(divisor) > 0:
            return _divide(expr, function, affine(a), int(divisor))
    return Affine(0, ((expr, 1),))


def combine(parts: Sequence[tuple[Affine, int]]) -> Affine:
    """The sum of affine expressions times factors, with quotients and remainders recombined."""
    constant, terms = 0, dict[Atom, int]()
    for value, factor in parts:
        constant += value.constant * factor
        for atom, coefficient in value.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
    return _sum(constant, terms)


def _sum(constant: int, terms: dict[Atom, int]) -> Affine:
    if 0 in terms.values():
        terms = {atom: coefficient for atom, coefficient in terms.items() if coefficient}
    found = Affine(constant, tuple(terms.items()))
    return _recombine(found) if Remainder in map(type, terms) else found


def _recombine(value: Affine) -> Affine:
    """c*K*(e // K) + c*(e % K) = c*e."""
    coefficients = dict(value.terms)
    for atom, coefficient in value.terms:
        if isinstance(atom, Remainder):
            partner = Quotient(atom.dividend, atom.divisor)
            if coefficients.get(partner) == coefficient * atom.divisor:
                rest = tuple((a, c) for a, c in value.terms if a not in (atom, partner))
                return combine([(Affine(value.constant, rest), 1), (atom.dividend, coefficient)])
    return value


def _product(expr: Expr, a: Affine, b: Affine) -> Affine:
    if not a.terms:
        return b.scale(a.constant)
    if not b.terms:
        return a.scale(b.constant)
    return Affine(0, ((expr, 1),))


def _divide(expr: Expr, function: str, dividend: Affine, divisor: int) -> Affine:
    """Split the dividend into a multiple of the divisor and a rest; resolve what the rest's range decides."""
    low, _ = dividend.range()
    if function == "div" and low < 0:
        return Affine(0, ((expr, 1),))  # scalar division truncates: only non-negative dividends are floors
    whole = tuple((atom, c // divisor) for atom, c in dividend.terms if c % divisor == 0)
    rest = Affine(dividend.constant % divisor, tuple((atom, c) for atom, c in dividend.terms if c % divisor))
    multiple = Affine(dividend.constant // divisor, whole)
    low, high = rest.range()
    if low > _UNKNOWN[0]:  # whole divisors move to the multiple, so that the rest is not negative
        carry = low // divisor
        if carry:
            multiple, rest = multiple + Affine(carry), rest + Affine(-carry * divisor)
        if high // divisor == carry:
            return multiple if function == "div" else rest
    if function == "div":
        return multiple + Affine(0, ((Quotient(rest, divisor), 1),))
    return Affine(0, ((Remainder(rest, divisor), 1),))


def _atom_range(atom: Atom) -> Range:
    """That of an atom which is no index."""
    match atom:
        case Quotient(dividend=dividend, divisor=divisor):
            low, high = dividend.range()
            return low // divisor, high // divisor
        case Remainder(dividend=dividend, divisor=divisor):
            low, high = dividend.range()
            return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)
        case Apply(function="min" | "max" as function, arguments=(a, b)):
            (la, ha), (lb, hb) = affine(a).range(), affine(b).range()
            choose = min if function == "min" else max
            return choose(la, lb), choose(ha, hb)
        case Apply(function="select", arguments=(_, a, b)):
            (la, ha), (lb, hb) = affine(a).range(), affine(b).range()
            return min(la, lb), max(ha, hb)
    return _UNKNOWN


def within(subscript: Affine, extent: int) -> bool:
    """Whether a subscript stays in [0, extent) for all index values."""
    low, high = subscript.range()
    return low >= 0 and high < extent


def always_differ(a: Affine, b: Affine, varying: Set[Index]) -> bool:
    """Whether two values differ, whatever ``varying`` indices are in each of them; all others are the same in both."""
    (fixed, free), (other, others) = (_divided(value, varying) for value in (a, b))
    difference = combine([(fixed, 1), (other, -1)])
    if not free.terms and not others.terms and _unequal_remainders(difference):
        return True
    (low, high), (least, most), (first, last) = (value.range() for value in (difference, free, others))
    return low + least > last or high + most < first


def _divided(value: Affine, varying: Set[Index]) -> tuple[Affine, Affine]:
    """The part that other indices alone decide, with the constant, and the rest."""
    fixed = tuple((atom, c) for atom, c in value.terms if _without(atom, varying))
    return Affine(value.constant, fixed), Affine(0, tuple(term for term in value.terms if term not in fixed))


def _unequal_remainders(difference: Affine) -> bool:
    """Whether it is that of two remainders by one divisor that are never equal, as t % 2 and (t + 1) % 2."""
    match difference:
        case Affine(0, ((Remainder(a, n), c), (Remainder(b, m), d))) if n == m and c == -d:
            between = combine([(a, 1), (b, -1)])
            return not between.terms and between.constant % n != 0
    return False


def address(load_index: Sequence[Expr], strides: Sequence[int]) -> Affine:
    """The element offset of a subscript tuple in memory."""
    constant, terms = 0, dict[Atom, int]()
    for subscript, stride in zip(load_index, strides, strict=True):
        if type(subscript) is Index:  # as :func:`combine` of all, without a form for each: most subscripts are indices
            if subscript.extent != 1:
                terms[subscript] = terms.get(subscript, 0) + stride
            continue
        form = affine(subscript)
        constant += form.constant * stride
        for atom, coefficient in form.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * stride
    return _sum(constant, terms)


def unflatten(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """Row-major subscripts of a flat position."""
    subscripts: list[Expr] = []
    for extent in reversed(shape[1:]):
        subscripts.append(flat % extent)
        flat = flat // extent
    return [flat, *reversed(subscripts)] if shape else []


def flatten(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Row-major flat position of subscripts."""
    flat: Expr = Const(0, i64)
    for subscript, extent in zip(index, shape, strict=True):
        flat = flat * extent + subscript
    return flat


def expression(value: Affine) -> Expr:
    """An affine expression as a loop-language expression again."""
    total: Expr | None = None
    for atom, coefficient in value.terms:
        match atom:
            case Quotient(dividend=dividend, divisor=divisor):
                term: Expr = expression(dividend) // divisor
            case Remainder(dividend=dividend, divisor=divisor):
                term = expression(dividend) % divisor
            case _:
                term = atom
        term = term if coefficient == 1 else call("mul", term, coefficient)
        total = term if total is None else total + term
    if total is None:
        return Const(value.constant, i64)
    return total + value.constant if value.constant else total


def needs_check(load: Load) -> bool:
    """Whether a filled load can fall outside its buffer."""
    return load.fill is not None and not all(
        within(affine(i), extent) for i, extent in zip(load.index, load.buffer.shape, strict=True)
    )
