#!/usr/bin/env python3
"""Golden vectors for docs/numerics.md, rules 1 to 4b: python3 golden/dot/make.py > golden/dot/vectors.json

Shares no code with the crate: blocks are decoded here from GGUF's byte layout, and every rounding is done on exact
fractions. Each case holds the bytes of a tensor, activations and the bits of every output element."""
import json
import random
import struct
from fractions import Fraction as F

LANES = 32
BLOCKS = {  # name: (weights, bytes)
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
    "Q5_1": (32, 24), "Q8_0": (32, 34), "IQ4_NL": (32, 18), "MXFP4": (32, 17), "NVFP4": (64, 36),
    "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_XS": (256, 136),
}
CODEBOOK = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]  # doubled


# --- binary32 on exact values. Zero has no sign here; no case lets the sign of a zero reach an output.

def rint(value):
    """Nearest integer, ties to even, of a fraction."""
    return round(value)


def f32(value):
    """The binary32 nearest to a fraction, as a fraction; ties to even, subnormals kept."""
    value = F(value)
    if value == 0:
        return F(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if F(2) ** exponent > magnitude:
        exponent -= 1
    assert F(2) ** exponent <= magnitude < F(2) ** (exponent + 1)
    step = F(2) ** (max(exponent, -126) - 23)
    rounded = rint(magnitude / step) * step
    assert rounded < F(2) ** 128, "overflow"
    return rounded if value > 0 else -rounded


def bits(value):
    """The bits of an exact binary32 value."""
    return struct.unpack("<I", struct.pack("<f", float(value)))[0]


def fma(a, b, c):
    return f32(a * b + c)


def half(data, at):
    (word,) = struct.unpack_from("<H", data, at)
    exponent, mantissa = word >> 10 & 31, word & 1023
    assert exponent != 31
    magnitude = F(mantissa, 2**24) if exponent == 0 else (1 + F(mantissa, 1024)) * F(2) ** (exponent - 15)
    return -magnitude if word >> 15 else magnitude


def single(word):
    exponent, mantissa = word >> 23 & 255, word & 0x7FFFFF
    assert exponent != 255
    magnitude = F(mantissa, 2**149) if exponent == 0 else (1 + F(mantissa, 2**23)) * F(2) ** (exponent - 127)
    return -magnitude if word >> 31 else magnitude


# --- the bytes of a block

def low_then_high(data):
    return [byte & 15 for byte in data] + [byte >> 4 for byte in data]


def fifth_bits(data, nibbles):
    (word,) = struct.unpack("<I", data)
    return [nibble + 16 * (word >> k & 1) for k, nibble in enumerate(nibbles)]


def float_blocks(kind, block):
    """[(scale, min, codes)] of one block, one entry per scale."""
    if kind == "Q8_0":
        return [(half(block, 0), F(0), list(struct.unpack("32b", block[2:])))]
    if kind == "Q4_0":
        return [(half(block, 0), F(0), [q - 8 for q in low_then_high(block[2:])])]
    if kind == "Q4_1":
        return [(half(block, 0), half(block, 2), low_then_high(block[4:]))]
    if kind == "Q5_0":
        return [(half(block, 0), F(0), [q - 16 for q in fifth_bits(block[2:6], low_then_high(block[6:]))])]
    if kind == "Q5_1":
        return [(half(block, 0), half(block, 2), fifth_bits(block[4:8], low_then_high(block[8:])))]
    if kind == "IQ4_NL":
        return [(half(block, 0), F(0), [CODEBOOK[q] for q in low_then_high(block[2:])])]
    if kind == "MXFP4":
        return [(F(2) ** (block[0] - 128), F(0), [E2M1[q] for q in low_then_high(block[1:])])]
    assert kind == "NVFP4"
    result = []
    for sub in range(4):
        byte = block[sub]
        exponent, mantissa = byte >> 3 & 15, byte & 7
        value = F(mantissa, 512) if exponent == 0 else (1 + F(mantissa, 8)) * F(2) ** (exponent - 7)
        result.append((value / 2, F(0), [E2M1[q] for q in low_then_high(block[4 + 8 * sub : 12 + 8 * sub])]))
    return result


def six_bits(packed):
    scales = [packed[j] & 63 for j in range(4)] + [packed[8 + j] & 15 | packed[j] >> 6 << 4 for j in range(4)]
    mins = [packed[4 + j] & 63 for j in range(4)] + [packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4 for j in range(4)]
    return scales, mins


def k_block(kind, block):
    """(d, dmin, sub-scales, sub-mins, codes), sub-scales and sub-mins one per 32 weights but per 16 in Q6_K."""
    if kind == "Q6_K":
        codes = [0] * 256
        for part in range(2):
            for i in range(32):
                first, second = block[64 * part + i], block[64 * part + 32 + i]
                high = block[128 + 32 * part + i]
                for quarter, low in enumerate([first & 15, second & 15, first >> 4, second >> 4]):
                    codes[128 * part + 32 * quarter + i] = (low | (high >> 2 * quarter & 3) << 4) - 32
        return half(block, 208), F(0), list(struct.unpack("16b", block[192:208])), [0] * 16, codes
    if kind == "IQ4_XS":
        (high,) = struct.unpack_from("<H", block, 2)
        scales = [(block[4 + j // 2] >> 4 * (j % 2) & 15 | (high >> 2 * j & 3) << 4) - 32 for j in range(8)]
        codes = [CODEBOOK[q] for j in range(8) for q in low_then_high(block[8 + 16 * j : 24 + 16 * j])]
        return half(block, 0), F(0), scales, [0] * 8, codes
    scales, mins = six_bits(block[4:16])
    nibbles = block[16:] if kind == "Q4_K" else block[48:]
    codes = [q for pair in range(4) for q in low_then_high(nibbles[32 * pair : 32 * pair + 32])]
    if kind == "Q5_K":
        codes = [q + 16 * (block[16 + k % 32] >> k // 32 & 1) for k, q in enumerate(codes)]
    return half(block, 0), half(block, 2), scales, mins, codes


# --- the rules

def quantise(x, group, ymax):
    """Rule 2."""
    codes, scales = [], []
    for first in range(0, len(x), group):
        values = x[first : first + group]
        largest = max(abs(v) for v in values)
        if largest < F(1, 2**100):
            codes += [0] * len(values)
            scales.append(F(0))
            continue
        inverse = f32(ymax / largest)
        codes += [max(-ymax, min(ymax, rint(f32(v * inverse)))) for v in values]
        scales.append(f32(largest / ymax))
    return codes, scales


def integer_weights(block, exponent):
    """The 256 w' of rule 1 for one block with mins, and the largest |M|."""
    d, dmin, scales, mins, codes = block
    ratio = f32(dmin / d) if d else F(0)
    integer_mins = [rint(f32(f32(ratio * m) * 2**exponent)) for m in mins]
    weights = [2**exponent * scales[k // 32] * codes[k] - integer_mins[k // 32] for k in range(256)]
    return weights, max(abs(m) for m in integer_mins)


def form_of(blocks, group, ymax):
    """Rule 1: 1, 0 or None for GEN."""
    if any(block[0] == 0 and block[1] != 0 for block in blocks):
        return None
    limit = (2**24 - 1) // ymax

    def fits(exponent):
        for block in blocks:
            weights, largest_min = integer_weights(block, exponent)
            if max(map(abs, weights)) > (2047 if exponent else 32767) or largest_min > 32767:
                return False
            if exponent and any(sum(map(abs, weights[g : g + group])) > limit for g in range(0, 256, group)):
                return False
        return True

    return 1 if fits(1) else 0 if fits(0) else None


def multiply(kind, rows, x, group, ymax):
    """`rows` are lists of blocks as bytes."""
    if kind in ("F32", "F16", "BF16"):
        return [dot_floats(kind, row, x) for row in rows]
    codes, scales = quantise(x, group, ymax)
    if kind.endswith("_K") or kind == "IQ4_XS":
        decoded = [[k_block(kind, block) for block in row] for row in rows]
        has_mins = kind in ("Q4_K", "Q5_K")
        form = form_of([block for row in decoded for block in row], group, ymax) if has_mins else 0
        return [dot_integer(row, codes, scales, group, form, has_mins) for row in decoded]
    return [dot_float_scales(kind, row, codes, scales, group) for row in rows]


def dot_integer(row, codes, scales, group, form, has_mins):
    """Rule 3 and class GEN."""
    acc = acc_mins = F(0)
    for g, dy in enumerate(scales):
        first = g * group
        d, dmin, sub_scales, sub_mins, q = block = row[first // 256]
        inside = range(first % 256, first % 256 + group)
        sub = 256 // len(sub_scales)
        y = codes[first : first + group]
        if form is None:
            total = sum(sub_scales[k // sub] * q[k] * c for k, c in zip(inside, y))
            offset = sum(sub_mins[k // sub] * c for k, c in zip(inside, y))
            acc = fma(f32(d * dy), f32(total), acc)
            acc_mins = fma(f32(dmin * dy), f32(offset), acc_mins)
            continue
        if has_mins:
            weights, _ = integer_weights(block, form)
            d = d / 2**form
        else:
            weights = [sub_scales[k // sub] * q[k] for k in range(256)]
        total = sum(weights[k] * c for k, c in zip(inside, y))
        assert abs(total) < 2**31
        acc = fma(f32(d * dy), f32(total), acc)
    return f32(acc - acc_mins) if form is None else acc


def dot_float_scales(kind, row, codes, scales, group):
    """Rule 4."""
    blocks = [sub for block in row for sub in float_blocks(kind, block)]
    size = len(blocks[0][2])
    acc = F(0)
    for g, dy in enumerate(scales):
        c = F(0)
        for first in range(g * group, min((g + 1) * group, len(codes)), size):
            scale, minimum, q = blocks[first // size]
            y = codes[first : first + size]
            c = fma(scale, f32(sum(a * b for a, b in zip(q, y))), c)
            if kind in ("Q4_1", "Q5_1"):
                c = fma(minimum, f32(sum(y)), c)
        acc = fma(dy, c, acc)
    return acc


def dot_floats(kind, row, x):
    """Rule 4b."""
    lanes = [F(0)] * LANES
    for k, value in enumerate(x):
        data = row[k]
        if kind == "F32":
            weight = single(struct.unpack("<I", data)[0])
        elif kind == "BF16":
            weight = single(struct.unpack("<H", data)[0] << 16)
        else:
            weight = half(data, 0)
        lanes[k % LANES] = fma(weight, value, lanes[k % LANES])
    step = LANES // 2
    while step:
        for lane in range(step):
            lanes[lane] = f32(lanes[lane] + lanes[lane + step])
        step //= 2
    return lanes[0]


# --- the cases

def half_bytes(value):
    return struct.pack("<e", value)


def random_block(kind, rng, ratio, negative):
    """A block of plausible scales; `ratio` is dmin / d of types with integer mins: 0 makes
    some blocks zero, None makes d zero alone."""
    data = bytearray(rng.randbytes(BLOCKS[kind][1]))
    d = rng.uniform(0.001, 0.05) * (-1 if negative else 1)
    if kind == "F32":
        return struct.pack("<f", rng.uniform(-0.5, 0.5))
    if kind == "F16":
        return half_bytes(rng.uniform(-0.5, 0.5))
    if kind == "BF16":
        return struct.pack("<f", rng.uniform(-0.5, 0.5))[2:]
    if kind == "MXFP4":
        data[0] = rng.randrange(110, 125)
    elif kind == "NVFP4":
        data[:4] = bytes(rng.randrange(0x7F) for _ in range(4))
    elif kind == "Q6_K":
        data[208:210] = half_bytes(d)
    else:
        data[0:2] = half_bytes(d)
    if kind in ("Q4_1", "Q5_1"):
        data[2:4] = half_bytes(rng.uniform(-0.5, 0.5))
    if kind in ("Q4_K", "Q5_K"):
        data[2:4] = half_bytes(0.03 if ratio is None else d * ratio)
        if ratio is None or ratio == 0 and rng.randrange(2):
            data[0:2] = half_bytes(0.0)
    return bytes(data)


def random_x(rng, count):
    """Stretches of different kinds: ordinary, one outlier, all largest, tiny, zero."""
    x = []
    while len(x) < count:
        kind = rng.randrange(6)
        scale = 2.0 ** rng.randrange(-8, 4)
        for _ in range(min(32, count - len(x))):
            value = rng.uniform(-scale, scale)
            if kind == 1 and rng.randrange(16) == 0:
                value *= 50
            elif kind == 2:
                value = rng.choice([scale, -scale])
            elif kind == 3:
                value = rng.uniform(-1, 1) * 2.0**-101
            elif kind == 4:
                value = 0.0
            elif kind == 5:
                value = rng.randrange(-255, 256) * scale / 254
            x.append(f32(F(value)))
    return x


def case(kind, rng, rows, cols, ratio, negative=False, group=None, ymax=127):
    group = group or (256 if kind.endswith("_K") or kind == "IQ4_XS" else 32)
    count = cols // BLOCKS[kind][0]
    raw = [[random_block(kind, rng, ratio, negative) for _ in range(count)] for _ in range(rows)]
    x = random_x(rng, cols)
    y = multiply(kind, raw, x, group, ymax)
    return {
        "type": kind,
        "cols": cols,
        "bits": ymax.bit_length() + 1,
        "group": group,
        "weights": b"".join(b"".join(row) for row in raw).hex(),
        "x": "".join("%08x" % bits(v) for v in x),
        "y": "".join("%08x" % bits(v) for v in y),
    }


def main():
    rng = random.Random(20261129)
    cases = []
    for kind, (size, _) in BLOCKS.items():
        cols = {1: 75, 32: 96, 64: 192, 256: 512}[size]
        ratios = [4.0, 12.0, 90.0, 3000.0, 0.0, None] if kind in ("Q4_K", "Q5_K") else [4.0]
        for ratio in ratios:
            cases.append(case(kind, rng, 3, cols, ratio))
            cases.append(case(kind, rng, 2, cols, ratio, negative=True))
        if size > 1:
            # The quality profile, and a last group cut short where blocks are shorter than groups.
            cases.append(case(kind, rng, 2, cols, 4.0, group=128, ymax=511))
            cases.append(case(kind, rng, 2, cols, 12.0, group=128))
    print("[")
    print(",\n".join(json.dumps(one) for one in cases))
    print("]")


main()
