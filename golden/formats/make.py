#!/usr/bin/env python3
"""Makes the golden vectors of the block formats from the `gguf` Python package (an implementation that is not ours).

usage: make.py [LIBGGML]     (pip install "gguf>=0.19" numpy; writes beside itself)

For each weight type T:
  T.blocks  whole blocks as a file stores them
  T.values  little-endian f32: what `gguf.quants.dequantize` makes of those blocks
and for types with one published rounding rule
  T.quantised  what `gguf.quants.quantize` makes of the weights in `quantise.input` (little-endian f32)
and for types whose quantisers search, with the path of llama.cpp's libggml-base.so (made with ggml 0.25.3 as packed in
llama-cpp-python 0.3.36; `llama-quantize` of that source gives the same bytes)
  T.rival   what its `ggml_quantize_chunk` makes of `quantise.input`, without an importance matrix

All of it comes from the package and the library; nothing here is a formula of our own. Left out, because muser refuses
such files and the package reads them as numbers: MXFP4 scale byte 255; NVFP4 scale bytes 0x7f and 0x80..0xff.
"""
import ctypes
import pathlib
import sys

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

TYPES = gguf.GGMLQuantizationType
OUT = pathlib.Path(__file__).parent

# Where each type keeps its f16 fields.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0],
}
# One block for each: ordinary, negative, zero, negative zero, least and greatest subnormal, least normal, greatest.
EDGES = [0x2345, 0xA111, 0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF]


def block_bytes(name):
    return gguf.GGML_QUANT_SIZES[TYPES[name]][1]


def write(name, blocks):
    with np.errstate(all="ignore"):
        values = dequantize(blocks, TYPES[name])
    (OUT / f"{name}.blocks").write_bytes(blocks.tobytes())
    (OUT / f"{name}.values").write_bytes(values.astype("<f4").tobytes())


def random_blocks(rng, name, count):
    return rng.integers(0, 256, (count, block_bytes(name)), dtype=np.uint8)


def with_half_scales(rng, name, offsets):
    """Random codes under every edge scale, then extreme codes, then a block of ones only (its scales are NaN)."""
    blocks = random_blocks(rng, name, len(EDGES) + 3)
    blocks[-3], blocks[-2], blocks[-1] = 0x00, 0xFF, 0xFF
    for i, block in enumerate(blocks[:-1]):
        for j, at in enumerate(offsets):
            edge = EDGES[(i + 3 * j) % len(EDGES)]
            block[at:at + 2] = np.frombuffer(int(edge).to_bytes(2, "little"), np.uint8)
    write(name, blocks)


def with_byte_scales(rng, name, scales, per_block):
    blocks = random_blocks(rng, name, len(scales) // per_block)
    blocks[:, :per_block] = np.array(scales, np.uint8).reshape(-1, per_block)
    blocks[-1, per_block:] = 0xFF
    write(name, blocks)


def floats(rng):
    halves = np.concatenate([np.array(EDGES + [0x7C00, 0xFC00, 0x7E01]), rng.integers(0, 0x7C00, 53)]).astype("<u2")
    write("F16", halves.view(np.uint8).reshape(1, -1))
    wide = np.concatenate([np.array([0, 0x8000, 1, 0x807F, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1]), rng.integers(0, 0x7F80, 56)])
    write("BF16", wide.astype("<u2").view(np.uint8).reshape(1, -1))
    singles = np.array([0.0, -0.0, 1e-45, -1e-40, 3.4e38, np.inf, -np.inf, np.nan, *rng.standard_normal(56)], "<f4")
    write("F32", singles.view(np.uint8).reshape(1, -1))


def quantiser_input(rng):
    """Rows of 256: bell-shaped at several sizes, heavy-tailed, one-sided, full of ties, mostly zero, constant."""
    rows = [rng.standard_normal(256) * size for size in (1.0, 0.02, 0.02, 0.02, 1e-3, 1e-5, 300.0)]
    rows += [rng.standard_normal(256) ** 3 * 0.01, rng.laplace(0, 0.02, 256), rng.standard_t(3, 256) * 0.02]
    rows += [rng.uniform(0.1, 0.2, 256), rng.uniform(-0.5, 0.0, 256), rng.integers(-3, 4, 256) * 0.25]
    rows += [rng.standard_normal(256) * (rng.random(256) < 0.02), np.full(256, -0.7), np.zeros(256)]
    halves = np.where(np.arange(256) % 32 == 0, 127.0, rng.integers(-126, 126, 256) + 0.5)
    halves[1::32], halves[2::32] = np.nextafter(np.float32(0.5), np.float32(0)), -0.5  # the ties of Q8_0
    rows += [halves]
    return np.array(rows, "<f4") + np.float32(0)  # no -0: tools disagree on the sign of an all-zero block's scale


def quantised(rows):
    (OUT / "quantise.input").write_bytes(rows.tobytes())
    for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        (OUT / f"{name}.quantised").write_bytes(quantize(rows, TYPES[name]).tobytes())


def rivals(rows, library):
    chunk = ctypes.CDLL(library).ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    for name in ("Q4_K", "Q5_K", "Q6_K", "IQ4_NL"):
        out = np.zeros(rows.size // gguf.GGML_QUANT_SIZES[TYPES[name]][0] * block_bytes(name), np.uint8)
        count, width = map(ctypes.c_int64, rows.shape)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (rows, out)]
        written = chunk(ctypes.c_int(TYPES[name]), *pointers, ctypes.c_int64(0), count, width, None)
        assert written == out.size
        (OUT / f"{name}.rival").write_bytes(out.tobytes())


def main():
    rng = np.random.default_rng(20240229)
    for name, offsets in HALVES.items():
        with_half_scales(rng, name, offsets)
    with_byte_scales(rng, "MXFP4", [0, 1, 2, 3, 100, 127, 128, 200, 252, 253, 254, 126], 1)
    with_byte_scales(rng, "NVFP4", [*range(0x7F), 0x7E], 4)
    floats(rng)
    rows = quantiser_input(rng)
    quantised(rows)
    if len(sys.argv) > 1:
        rivals(rows, sys.argv[1])


main()
