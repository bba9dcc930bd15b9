"""Numbers as terminals of Lark; those that are multiples as schemas, which llguidance has right where they have as many digits
after the point as the multiple."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

from decodestep.constraints.schemas.shapes import FARTHEST, Number

# Numbers are such that float64 and int64 can hold them.
WHOLE = r"/-?(0|[1-9][0-9]{0,17})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,24})?([eE][-+]?(0?[0-9]{1,2}|1[0-9]{2}|2[0-7][0-9]))?/"
_FAR = 10**18  # the farthest of numbers that are bounded on the other side alone
_FREE = "[0-9]{0,24}"  # digits after those that a bound decides
# The least number beyond an exclusive bound of 0, which parsers read in 0.000...1: expressions cannot nest as deep as the
# smallest float64 has zeros.
_SMALLEST = 1e-48


def whole_terminal(shape: Number) -> str:
    """The terminal of whole numbers between two, of any number of digits."""
    first, last = _ends(*shape.whole_range)
    ways = [f"-({'|'.join(_between(max(1, -int(last)), -int(first)))})"] if first < 0 else []
    if first < 0 <= last:
        ways.append("-0")
    ways += _between(max(0, int(first)), int(last)) if last >= 0 else []
    return f"/{'|'.join(ways)}/"


def decimal_terminal(shape: Number) -> str:
    """The terminal of numbers between two, without exponents. Parsers round what is written, so that the first is the float64
    that follows an exclusive bound."""
    first, last = _ends(_first(shape.least, math.inf, shape.above), _first(shape.most, -math.inf, shape.below))
    ways = [f"-({_unsigned(max(0, -last), -first)})"] if first < 0 else []
    ways += [_unsigned(max(0, first), last)] if last >= 0 else []
    return f"/{'|'.join(ways)}/"


def multiple_schemas(shape: Number) -> list[dict[str, Any]]:
    """The keywords of numbers with multiples for llguidance: of those that may be written without a fraction, with one digit of
    it, and so on, up to as many as the least common multiple has. None if there is no such number."""
    steps = [Fraction(repr(each)) for each in shape.multiples] + ([Fraction(1)] if shape.whole else [])
    step = reduce(_common, steps)
    bounds = _ends(shape.least, shape.most)
    schemas, digits = [], 0
    while True:
        grid = _common(step, Fraction(1, 10**digits))
        least, most = (Fraction(repr(bound)) / grid for bound in bounds)
        first = math.floor(least) + 1 if shape.above else math.ceil(least)
        last = math.ceil(most) - 1 if shape.below else math.floor(most)
        if first <= last:
            schemas.append({
                "type": "number" if digits else "integer",
                "multipleOf": _plain(grid),
                "minimum": max(_plain(first * grid), -FARTHEST),
                "maximum": min(_plain(last * grid), FARTHEST),
            })  # fmt: skip
        if grid == step:
            return schemas
        digits += 1


def _common(one: Fraction, other: Fraction) -> Fraction:
    """The least common multiple."""
    return Fraction(
        math.lcm(one.numerator * other.denominator, other.numerator * one.denominator), one.denominator * other.denominator
    )


def _plain(value: Fraction) -> float:
    return int(value) if value.denominator == 1 else float(value)


def _ends(first: float, last: float) -> tuple[float, float]:
    """The first and last number, also where there is no bound."""
    far = max([_FAR, *(2 * abs(bound) for bound in (first, last) if math.isfinite(bound))])
    return (first if math.isfinite(first) else -far), (last if math.isfinite(last) else far)


def _first(bound: float, inward: float, exclusive: bool) -> float:
    """The first number within a bound that can be written; a bound is nearer to 0 where it cannot."""
    if exclusive and math.isfinite(bound):
        bound = math.nextafter(bound, inward)
    if bound == 0 or abs(bound) >= _SMALLEST:
        return bound
    return math.copysign(_SMALLEST, bound) if bound * inward > 0 else 0


def _between(low: int, high: int) -> list[str]:
    """Regular expressions of the numbers between two that are not negative: of ranges of one digit, before which the digits are
    the same and after which they are free."""
    ways = []
    while low <= high:
        free = 0
        while low and low % 10 ** (free + 1) == 0 and low + 10 ** (free + 1) <= high + 1:
            free += 1
        before, digit = divmod(low // 10**free, 10)
        last = min(9, digit + (high + 1 - low) // 10**free - 1)
        ways.append(f"{before or ''}[{digit}-{last}]" + (f"[0-9]{{{free}}}" if free else ""))
        low += (last - digit + 1) * 10**free
    return ways


def _unsigned(first: float, last: float) -> str:
    """The regular expression of the numbers between two that are not negative."""
    (low, after_low), (high, after_high) = _digits(first), _digits(last)
    if low == high:
        return f"{low}{_fraction(after_low, after_high)}"
    inner = [f"{way}{_fraction('', None)}" for way in _between(low + 1, high - 1)]
    return "|".join([f"{low}{_fraction(after_low, None)}", *inner, f"{high}{_fraction('', after_high)}"])


def _digits(number: float) -> tuple[int, str]:
    """The whole part of a number, and its digits after the point without zeros at the end."""
    whole, _, after = format(Decimal(repr(number)), "f").partition(".")
    return int(whole), after.rstrip("0")


def _fraction(first: str, last: str | None) -> str:
    """What may follow the whole part: the point and digits between two, the last of which may be open; nothing is 0."""
    return rf"(\.({_tail(first or '0', last if last is None else last or '0')}))" + ("" if first else "?")


def _tail(first: str, last: str | None) -> str:
    """At least one digit, of numbers between two."""
    low, high = int(first[0]), 9 if last is None else int(last[0])
    after = None if last is None else last[1:]
    if low == high and last is not None:
        return f"{low}{_rest(first[1:], after)}"
    ways = [f"{low}{_rest(first[1:], None)}"]
    if high - low > 1 or (last is None and low < 9):
        ways.append(f"[{low + 1}-{9 if last is None else high - 1}]{_FREE}")
    return "|".join(ways if last is None else [*ways, f"{high}{_rest('', after)}"])


def _rest(first: str, last: str | None) -> str:
    """What may follow a digit."""
    if not first and not last:
        return _FREE if last is None else "0{0,24}"
    return f"({_tail(first or '0', last)})" + ("" if first else "?")
