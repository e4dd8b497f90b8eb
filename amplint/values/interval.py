"""Intervals with open or closed ends, and how rounding to a float dtype moves them.

An interval holds every value that an expression can take for finite inputs. The open end of `sigmoid`, (0, 1), is
closed by rounding: in float16 it returns 0 and 1 exactly.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from math import inf, isinf, isnan

from amplint.values.dtype import Dtype

FLOAT16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Interval:
    """The values from `lower` to `upper`; an open end is approached, not attained."""

    lower: float = -inf
    upper: float = inf
    lower_open: bool = False
    upper_open: bool = False

    @classmethod
    def point(cls, value: float) -> Interval:
        return ALL if isnan(value) else cls(value, value)

    def __contains__(self, value: float) -> bool:
        above = value > self.lower or (value == self.lower and not self.lower_open)
        below = value < self.upper or (value == self.upper and not self.upper_open)
        return above and below

    @property
    def positive(self) -> bool:
        """Whether every value is above zero."""
        return self.lower > 0 or (self.lower == 0 and self.lower_open)

    @property
    def non_negative(self) -> bool:
        return self.lower >= 0

    @property
    def bounded(self) -> bool:
        return not isinf(self.lower) and not isinf(self.upper)

    def union(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        lower, lower_open = min((self.lower, self.lower_open), (other.lower, other.lower_open))
        upper, upper_closed = max((self.upper, not self.upper_open), (other.upper, not other.upper_open))
        return Interval(lower, upper, lower_open, not upper_closed)

    def intersection(self, other: Interval) -> Interval:
        """What both hold; the nearest single value where they are disjoint (as clamping does)."""
        lower, lower_open = max((self.lower, self.lower_open), (other.lower, other.lower_open))
        upper, upper_closed = min((self.upper, not self.upper_open), (other.upper, not other.upper_open))
        return Interval(lower, max(lower, upper), lower_open and lower < upper, not upper_closed and lower < upper)

    def __neg__(self) -> Interval:
        return Interval(-self.upper, -self.lower, self.upper_open, self.lower_open)

    def __add__(self, other: Interval) -> Interval:
        return Interval(
            _sum(self.lower, other.lower, -inf),
            _sum(self.upper, other.upper, inf),
            self.lower_open or other.lower_open,
            self.upper_open or other.upper_open,
        )

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        corners = [
            _product(a, b)
            for a in ((self.lower, self.lower_open), (self.upper, self.upper_open))
            for b in ((other.lower, other.lower_open), (other.upper, other.upper_open))
        ]
        return _hull(corners)

    def reciprocal(self) -> Interval:
        """1 / x for every x here; everything if zero is in, or may be."""
        if self.lower > 0 or self.upper < 0 or (self.lower == 0 and self.lower_open and self.upper > 0):
            upper = inf if self.lower == 0 else 1 / self.lower
            return Interval(1 / self.upper, upper, self.upper_open, self.lower_open)
        if self.upper == 0 and self.upper_open and self.lower < 0:
            return Interval(-inf, 1 / self.lower, False, self.lower_open)
        return ALL

    def square(self) -> Interval:
        magnitude = self.absolute()
        return Interval(magnitude.lower**2, _squared(magnitude.upper), magnitude.lower_open, magnitude.upper_open)

    def absolute(self) -> Interval:
        if self.lower >= 0:
            return self
        if self.upper <= 0:
            return -self
        upper, closed = max((-self.lower, not self.lower_open), (self.upper, not self.upper_open))
        return Interval(0.0, upper, False, not closed)

    def root(self) -> Interval:
        """The square root of the non-negative part."""
        part = self.intersection(NON_NEGATIVE)
        return Interval(math.sqrt(part.lower), math.sqrt(part.upper), part.lower_open, part.upper_open)

    def power(self, exponent: float) -> Interval:
        """x ** exponent for a constant exponent."""
        if exponent == 2:
            return self.square()
        if exponent == 0.5:
            return self.root()
        if exponent == 1:
            return self
        if self.non_negative and exponent > 0:
            lower, upper = _power(self.lower, exponent), _power(self.upper, exponent)
            return Interval(lower, upper, self.lower_open, self.upper_open)
        if self.positive and exponent < 0:
            return self.power(-exponent).reciprocal()
        if exponent % 2 == 0:
            return NON_NEGATIVE if exponent > 0 else Interval(0.0, inf, True)
        return ALL

    def rounded(self, dtype: Dtype) -> Interval:
        """The interval that rounding to `dtype` makes of this one.

        An open end is closed where a value close to it rounds onto it: (0, 1) becomes [0, 1]. Ends beyond the
        largest float16 become infinite.
        """
        if dtype not in _ROUND:
            return self
        return Interval(_rounded(self.lower, dtype), _rounded(self.upper, dtype))


ALL = Interval()
NON_NEGATIVE = Interval(0.0, inf)
UNIT = Interval(0.0, 1.0)


def round_to(value: float, dtype: Dtype) -> float:
    """`value` rounded to the nearest of `dtype`; infinite beyond its range; unchanged for dtypes that are no floats."""
    return _rounded(value, dtype)


_ROUND = {Dtype.FLOAT16: "<e", Dtype.BFLOAT16: "", Dtype.FLOAT32: "<f", Dtype.FLOAT64: "<d"}


def _rounded(value: float, dtype: Dtype) -> float:
    if dtype not in _ROUND:
        return value
    if dtype is Dtype.BFLOAT16:
        return _to_bfloat16(value)
    form = _ROUND[dtype]
    try:
        return float(struct.unpack(form, struct.pack(form, value))[0])
    except OverflowError:
        return math.copysign(inf, value)


def _to_bfloat16(value: float) -> float:
    single = _rounded(value, Dtype.FLOAT32)
    if isinf(single):
        return single
    (bits,) = struct.unpack("<I", struct.pack("<f", single))
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def _sum(left: float, right: float, otherwise: float) -> float:
    total = left + right
    return otherwise if isnan(total) else total


def _product(left: tuple[float, bool], right: tuple[float, bool]) -> tuple[float, bool]:
    if left[0] == 0 or right[0] == 0:
        attained = (left[0] == 0 and not left[1]) or (right[0] == 0 and not right[1])
        return 0.0, not attained
    return left[0] * right[0], left[1] or right[1]


def _hull(corners: list[tuple[float, bool]]) -> Interval:
    lower = min(corners)
    upper = max((value, not is_open) for value, is_open in corners)
    return Interval(lower[0], upper[0], lower[1], not upper[1])


def _squared(value: float) -> float:
    return value * value


def _power(value: float, exponent: float) -> float:
    try:
        return math.pow(value, exponent)
    except OverflowError:
        return inf
