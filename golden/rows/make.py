#!/usr/bin/env python3
"""Makes the golden vectors of the row operations (rules 5 to 8) in exact arithmetic, with nothing but the standard library.

usage: make.py      (writes exp2.json, rows.json and rope.json beside itself)

f32 numbers are eight hexadecimal digits of their bits. Inputs come from `exact.Stream`, which the test repeats.
"""
import json
import math
import pathlib
from decimal import Decimal, getcontext
from fractions import Fraction

import exact
from exact import add, div, exp2_degree6, fma, from_bits, mul, nearest, softmax_weight, sqrt, sub, words

HERE = pathlib.Path(__file__).parent
getcontext().prec = 60

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 17.25, -17.25, 88.0, -88.0, 126.5, -126.5, 1e3, -1e3]
SPECIAL += [from_bits(1), from_bits(0x80000001), 2.0**-126, -(2.0**120)]


def inverse_rms(x, eps):
    lanes = [0.0] * 256
    for k, element in enumerate(x):
        lanes[k % 256] = fma(element, element, lanes[k % 256])
    half = 128
    while half:
        for lane in range(half):
            lanes[lane] = add(lanes[lane], lanes[lane + half])
        half //= 2
    return div(1.0, sqrt(add(div(lanes[0], float(len(x))), eps)))


def norm_case(seed, n, exponent, eps, weighted):
    stream = exact.Stream(seed)
    x, weight = stream.take(n, exponent), stream.take(n)
    eps = nearest(Fraction(eps))
    r = inverse_rms(x, eps)
    y = [mul(element, r) for element in x]
    if weighted:
        y = [mul(element, w) for element, w in zip(y, weight)]
    return {"seed": seed, "n": n, "exponent": exponent, "eps": words([eps]), "weighted": weighted, "out": words(y)}


def denominator(g):
    return add(1.0, exp2_degree6(mul(-g, exact.LOG2_E)))


def tanh(z):
    t = exp2_degree6(mul(mul(-2.0, abs(z)), exact.LOG2_E))
    return math.copysign(div(sub(1.0, t), add(1.0, t)), z)


def gates():
    stream = exact.Stream(11)
    x = SPECIAL + stream.take(60, 3) + stream.take(30, 7)
    y = stream.take(len(x), 1)
    return {
        "x": words(x),
        "y": words(y),
        "add": words(add(a, b) for a, b in zip(x, y)),
        "silu_mul": words(mul(div(a, denominator(a)), b) for a, b in zip(x, y)),
        "sigmoid_gate": words(mul(b, div(1.0, denominator(a))) for a, b in zip(x, y)),
        "scale": words([0.75]),
        "cap": words([30.0]),
        "scale_soft_cap": words(mul(30.0, tanh(div(mul(a, 0.75), 30.0))) for a in x),
        "soft_cap_1": words(tanh(a) for a in x),
    }


def pi():
    """Machin's formula."""
    def arctan_of_inverse(n):
        total, term, k = Decimal(0), Decimal(1) / n, 0
        while abs(term) > Decimal(10) ** -58:
            total += term / (2 * k + 1) * (-1) ** k
            term, k = term / (n * n), k + 1
        return total
    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


PI = pi()


def sine(angle, quarter_turns=0):
    """Taylor series of sin(angle + quarter_turns * pi / 2)."""
    x = (angle + quarter_turns * PI / 2) % (2 * PI)
    total, term, k = Decimal(0), x, 1
    while abs(term) > Decimal(10) ** -55:
        total += term
        term, k = -term * x * x / ((k + 1) * (k + 2)), k + 2
    return total


def binary64(x):
    return nearest(Fraction(x), exact.BINARY64) if x else 0.0


def rope_case(base, dims, factors, positions, pairs):
    """Every step in f64, rounded once; then to f32."""
    base = nearest(Fraction(base))
    entries = []
    for position in positions:
        for i in pairs:
            power = nearest(Fraction(-2 * i, dims), exact.BINARY64) if i else 0.0
            frequency = binary64((Decimal(base).ln() * Decimal(power)).exp()) if power else 1.0
            angle = binary64(Fraction(position) * Fraction(frequency))
            if factors:
                angle = binary64(Fraction(angle) / Fraction(factors[i]))
            numbers = [binary64(sine(Decimal(angle), 1)), binary64(sine(Decimal(angle)))]
            entries.append([position, i, words(nearest(Fraction(x)) if x else 0.0 for x in numbers)])
    return {"base": words([base]), "dims": dims, "factors": words(factors or []), "entries": entries}


def rotation():
    stream = exact.Stream(21)
    x, cos, sin = stream.take(20), stream.take(8), stream.take(8)
    norm, neox = list(x), list(x)
    for i, (c, s) in enumerate(zip(cos, sin)):
        for y, (a, b) in ((norm, (2 * i, 2 * i + 1)), (neox, (i, i + 8))):
            y[a], y[b] = fma(x[a], c, -mul(x[b], s)), fma(x[b], c, mul(x[a], s))
    return {"x": words(x), "cos": words(cos), "sin": words(sin), "norm": words(norm), "neox": words(neox)}


def main():
    stream = exact.Stream(3)
    x = SPECIAL + [-126.0, 126.0, -125.5, -124.5] + stream.take(200, 7) + stream.take(100)
    u = [0.0, 1.0, 0.5, 1 / 128, 127 / 128, 2.0**-149] + [abs(v) for v in stream.take(300)]
    exp2 = {
        "x": words(x),
        "degree6": words(map(exp2_degree6, x)),
        "u": words(u),
        "softmax_weight": words(map(softmax_weight, u)),
    }
    norms = [norm_case(100 + n, n, 0, 1e-5, n % 2 == 0) for n in (1, 31, 64, 128, 255, 256, 257, 600)]
    norms += [norm_case(7, 300, -70, 1e-8, False), norm_case(8, 300, 55, 1e-6, True), norm_case(9, 128, -12, 1e-8, True)]
    positions = [0, 1, 2, 63, 2047, 131071]
    factors = [1.0 + i / 8 for i in range(32)]
    ropes = [
        rope_case(10000.0, 128, None, positions, [0, 1, 7, 31, 32, 62, 63]),
        rope_case(500000.0, 64, factors, positions, [0, 1, 5, 30, 31]),
        rope_case(1000000.0, 80, None, positions, [0, 13, 39]),
        rope_case(10000.0, 2, None, positions, [0]),
    ]
    files = {"exp2": exp2, "rows": {"norms": norms, "gates": gates()}, "rope": {"table": ropes, "rotation": rotation()}}
    for name, content in files.items():
        (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


main()
