#!/usr/bin/env python3
"""Makes the golden vectors of attention (rule 9) in exact arithmetic, with nothing but the standard library.

usage: make.py      (writes attention.json beside itself; takes half a minute)

Keys, values and queries come from `exact.Stream`, one stream each, row after row, times a power of two that depends on
the row: see `exponent`. The test repeats that. Results are f32 bits, eight hexadecimal digits each.
"""
import json
import math
import pathlib
import struct
import sys
from decimal import Decimal, getcontext
from fractions import Fraction

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "rows"))
import exact  # noqa: E402
from exact import add, div, fma, mul, nearest, rint, softmax_weight, words  # noqa: E402

getcontext().prec = 50
NOTHING = None  # minus infinity, as the exponent of an empty sum


def exponent(pattern, row):
    """Power of two of a row, or None for a row of zeros."""
    return {
        "plain": 0,
        "steep": 4,
        "spread": row * 7 % 13 - 6,
        "first page zero": None if row < 64 else 0,
        "zero": None,
        "tiny": [-98, -99, -100, -101, -120][row % 5],
        "huge": 90,
        "mixed": [None, 40, -40, 0, 12][row % 5],
    }[pattern]


def rows(seed, count, columns, pattern):
    stream = exact.Stream(seed)
    made = []
    for row in range(count):
        numbers, power = stream.take(columns), exponent(pattern, row)
        made.append([0.0] * columns if power is None else [x * 2.0**power for x in numbers])
    return made


def score_scale(head_dim):
    return nearest(Fraction(1 / Decimal(2).ln() / Decimal(head_dim).sqrt()))


def quantise(x, code_max):
    a = max(map(abs, x))
    if a < 2.0**-100:
        return [0] * len(x), 0.0
    inverse = div(code_max, a)
    codes = [max(-int(code_max), min(int(code_max), rint(mul(e, inverse)))) for e in x]
    return codes, div(a, code_max)


def integer(n):
    return nearest(Fraction(n)) if n else 0.0


def pow2(n):
    return 2.0**n if n >= -126 else 0.0


def gap(a, b):
    """a - b of exponents in f32; an empty sum is infinitely far below."""
    return -math.inf if a is NOTHING else add(a, -b)


def merge(state, h, l, o, unit):
    m, old_l, old_o = state
    top = h if m is NOTHING else max(m, h)
    old, new = pow2(gap(m, top)), pow2(gap(h, top))
    gain = mul(new, unit)
    return top, fma(old_l, old, mul(new, l)), [fma(t, gain, mul(o, old)) for t, o in zip(o, old_o)]


def tile_softmax(t, scale):
    """`t`: scores of the visible keys, by row of the page. Returns h, weights and their sum."""
    h = float(math.ceil(mul(max(t.values()), scale)))
    slope, shift = div(scale, 64.0), fma(h, -1 / 64, 1.0)
    p = {k: softmax_weight(min(max(fma(x, slope, shift), 0.0), 1.0)) for k, x in t.items()}
    a = [0.0] * 8
    for k in range(64):
        a[k % 8] = add(a[k % 8], p.get(k, 0.0))
    l = add(add(add(a[0], a[1]), add(a[2], a[3])), add(add(a[4], a[5]), add(a[6], a[7])))
    return h, p, l


def tile_q8(query, keys, values, head_dim):
    codes, scale = query
    t = {k: mul(integer(sum(q * c for q, c in zip(codes, key))), ks) for k, (key, ks) in keys.items()}
    h, p, l = tile_softmax(t, scale)
    largest = max(vs for _, vs in values.values())
    e = max(math.frexp(largest)[1], -100) if largest else -100
    sums = [0] * head_dim
    for k, (value, vs) in values.items():
        weight = int(fma(p[k], mul(vs, 2.0 ** (11 - e)), exact.ROUND_TO_INTEGER) - exact.ROUND_TO_INTEGER)
        assert 0 <= weight <= 2048
        sums = [s + weight * c for s, c in zip(sums, value)]
    return h, l, [integer(s) for s in sums], 2.0 ** (e - 11)


def tile_f16(query, keys, values, head_dim):
    floats, scale = query
    t = {}
    for k, key in keys.items():
        lanes = [0.0] * 32
        for d in range(head_dim):
            lanes[d % 32] = fma(key[d], floats[d], lanes[d % 32])
        step = 16
        while step:
            for lane in range(step):
                lanes[lane] = add(lanes[lane], lanes[lane + step])
            step //= 2
        t[k] = lanes[0]
    h, p, l = tile_softmax(t, scale)
    sums = [0.0] * head_dim
    for k in sorted(values):
        sums = [fma(p[k], v, s) for v, s in zip(values[k], sums)]
    return h, l, sums, 1.0


def attend(layout, window, query, position, keys, values):
    """One query vector over stored rows of one key-value head."""
    head_dim = len(query)
    if layout == "q8":
        codes, scale = quantise(query, 1023.0)
        query, tile = (codes, mul(scale, score_scale(head_dim))), tile_q8
    else:
        query, tile = (query, score_scale(head_dim)), tile_f16
    first = max(0, position + 1 - window) if window else 0
    empty = (NOTHING, 0.0, [0.0] * head_dim)
    total = empty
    for segment in range(position // 1024 + 1):
        part = empty
        for page in range(16 * segment, 16 * segment + 16):
            seen = range(max(first, 64 * page), min(position + 1, 64 * page + 64))
            if seen:
                pick = lambda rows: {at - 64 * page: rows[at] for at in seen}
                part = merge(part, *tile(query, pick(keys), pick(values), head_dim))
        if part[0] is not NOTHING:
            total = merge(total, *part, 1.0)
    inverse = div(1.0, total[1])
    return [mul(o, inverse) for o in total[2]]


def store(layout, vector):
    if layout == "q8":
        return quantise(vector, 127.0)
    return [nearest(Fraction(x), exact.BINARY16) if x else x for x in vector]


def case(layout, heads, head_dim, window, positions, patterns=("plain", "plain", "plain"), seed=1):
    query_heads, kv_heads = heads
    key_pattern, value_pattern, query_pattern = patterns
    count = max(positions) + 1
    keys = rows(seed, count, kv_heads * head_dim, key_pattern)
    values = rows(seed + 1000, count, kv_heads * head_dim, value_pattern)
    queries = rows(seed + 2000, len(positions), query_heads * head_dim, query_pattern)
    out = []
    for position, query in zip(positions, queries):
        for head in range(query_heads):
            columns = slice(head * kv_heads // query_heads * head_dim, (head * kv_heads // query_heads + 1) * head_dim)
            first = max(0, position + 1 - window) if window else 0
            near = range(first // 64 * 64, position + 1)
            stored_keys = {at: store(layout, keys[at][columns]) for at in near}
            stored_values = {at: store(layout, values[at][columns]) for at in near}
            out += attend(layout, window, query[head * head_dim:][:head_dim], position, stored_keys, stored_values)
    return {
        "layout": layout, "query_heads": query_heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "window": window, "positions": positions, "patterns": patterns, "seed": seed, "out": words(out),
    }


def stored_vectors():
    """Vectors of 32 as pages hold them: q8 codes (two digits each) and scale, f16 bits (four digits each)."""
    ties = [k + 0.5 for k in range(-16, 15)] + [127.0]
    vectors = [exact.Stream(5).take(32), [0.0] * 32, ties]
    vectors += [exact.Stream(6).take(32, e) for e in (-98, -100, -101, 15, -14, -25, 100)]
    vectors += [[2.0**-100] + [2.0**-101] * 31, [2.0**-100 - 2.0**-124] * 32]
    made = []
    for vector in vectors:
        codes, scale = quantise(vector, 127.0)
        entry = {"x": words(vector), "codes": "".join(f"{c % 256:02x}" for c in codes), "scale": words([scale])}
        if max(map(abs, vector)) < 65504:
            halves = (struct.unpack("<H", struct.pack("<e", x))[0] for x in store("f16", vector))
            entry["halves"] = "".join(f"{h:04x}" for h in halves)
        made.append(entry)
    return made


def main():
    cases = []
    for layout in ("q8", "f16"):
        small = lambda *rest, **more: cases.append(case(layout, (1, 1), 32, *rest, **more))
        small(None, [0, 1, 31, 32, 33])
        small(None, [62, 63, 64, 65], seed=2)
        small(32, [30, 31, 32, 40, 63, 70, 100], seed=3)
        small(100, [99, 100, 163, 200], ("spread", "spread", "plain"), seed=4)
        small(None, [1022, 1023, 1024], ("steep", "spread", "plain"), seed=5)
        small(64, [1023, 1030, 1087], seed=6)
        small(None, [70], ("plain", "first page zero", "plain"), seed=7)
        small(None, [70], ("zero", "plain", "plain"), seed=8)
        small(None, [70], ("plain", "plain", "zero"), seed=9)
        small(None, [70], ("plain", "zero", "plain"), seed=10)
        cases.append(case(layout, (6, 2), 64, None, [3, 65], seed=11))
        cases.append(case(layout, (3, 1), 96, 50, [66], ("steep", "spread", "plain"), seed=12))
        cases.append(case(layout, (2, 1), 128, None, [66], seed=13))
        cases.append(case(layout, (1, 1), 256, None, [66], ("steep", "plain", "plain"), seed=14))
    for patterns in (("tiny", "tiny", "tiny"), ("plain", "tiny", "plain"), ("huge", "huge", "tiny"), ("mixed", "mixed", "plain")):
        cases.append(case("q8", (1, 1), 32, None, [64, 131], patterns, seed=20))
        cases.append(case("q8", (1, 1), 32, 40, [64, 131], patterns, seed=21))
    content = {
        "score_scales": {str(dim): words([score_scale(dim)]) for dim in range(32, 257, 32)},
        "stored": stored_vectors(),
        "cases": cases,
    }
    (HERE / "attention.json").write_text(json.dumps(content) + "\n")


main()
