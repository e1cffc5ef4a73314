"""IEEE arithmetic in exact fractions: no float unit takes part.

A binary32 (or binary16) number is a Python float with the same value; -0.0 is itself. Every operation computes the exact
rational result and rounds it once, to nearest, ties to even, subnormals kept. A result beyond the format raises.
"""
import math
import struct
from fractions import Fraction

BINARY16 = (11, -14, 15)
BINARY32 = (24, -126, 127)
BINARY64 = (53, -1022, 1023)


def nearest(exact, form=BINARY32):
    """The number of the format nearest to a non-zero fraction."""
    precision, least, greatest = form
    sign, size = (-1, -exact) if exact < 0 else (1, exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, least) - precision + 1)
    quotient, rest = divmod(size, step)
    if rest * 2 > step or (rest * 2 == step and quotient % 2 == 1):
        quotient += 1
    rounded = quotient * step
    if rounded >= Fraction(2) ** (greatest + 1):
        raise OverflowError(f"{float(exact)} is beyond the format")
    return math.copysign(float(rounded), sign)


def fma(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        signs = {math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c)}
        return -0.0 if signs == {-1.0} else 0.0
    return nearest(exact)


def add(a, b):
    return fma(a, 1.0, b)


def sub(a, b):
    return add(a, -b)


def mul(a, b):
    if a == 0 or b == 0:
        return math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b))
    return nearest(Fraction(a) * Fraction(b))


def div(a, b, form=BINARY32):
    return nearest(Fraction(a) / Fraction(b), form) if a != 0 else math.copysign(0.0, a)


def sqrt(a):
    """The integer root of `a` with many spare bits; half a unit more where it is not exact, so that no tie is invented."""
    x = Fraction(a)
    shift = 160 + 2 * x.denominator.bit_length()
    scaled, rest = divmod(x.numerator << shift, x.denominator)
    root = math.isqrt(scaled)
    inexact = rest != 0 or root * root != scaled
    return nearest(Fraction(2 * root + inexact, 2 ** (shift // 2 + 1)))


def rint(a):
    floor = math.floor(Fraction(a))
    rest = Fraction(a) - floor
    return floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1))


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(b):
    return struct.unpack("<f", struct.pack("<I", b & 0xFFFFFFFF))[0]


def words(numbers):
    """The bits of f32 numbers as one hexadecimal string, eight digits each."""
    return "".join(f"{bits(x):08x}" for x in numbers)


ROUND_TO_INTEGER = 12582912.0
LOG2_E = float.fromhex("0x1.715476p+0")
DEGREE6 = ["0x1.41fbbcp-13", "0x1.5f3e54p-10", "0x1.3b2d4cp-7", "0x1.c6aee8p-5", "0x1.ebfbdcp-3", "0x1.62e430p-1", "1"]
DEGREE4 = ["0x1.3a02ccp-7", "0x1.c9fc46p-5", "0x1.ec0378p-3", "0x1.62e12cp-1", "1"]


def polynomial(coefficients, x):
    value = float.fromhex(coefficients[0])
    for c in coefficients[1:]:
        value = fma(value, x, float.fromhex(c))
    return value


def exp2_degree6(x):
    x = min(max(x, -126.0), 126.0)
    shifted = add(x, ROUND_TO_INTEGER)
    fraction = sub(x, sub(shifted, ROUND_TO_INTEGER))
    return from_bits(bits(polynomial(DEGREE6, fraction)) + (bits(shifted) << 23))


def softmax_weight(u):
    offset = ROUND_TO_INTEGER - 64.0
    shifted = fma(u, 64.0, offset)
    fraction = fma(u, 64.0, -sub(shifted, offset))
    return from_bits(bits(polynomial(DEGREE4, fraction)) + (bits(shifted) << 23))


class Stream:
    """Numbers of 24 bits in [-1, 1), the same in every language: a 64-bit linear congruential generator."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return ((self.state >> 40) - 2**23) / 2**23

    def take(self, count, exponent=0):
        return [self.next() * 2.0**exponent for _ in range(count)]
