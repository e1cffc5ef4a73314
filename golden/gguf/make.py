#!/usr/bin/env python3
"""Writes the files of this folder with the format's own library. usage: make.py   (pip install gguf==0.19.0 numpy)

sample.gguf holds a value of every metadata type and tensors of every type the library can quantise or copy.
split-0000N-of-00003.gguf is a model of six tensors in three shards."""
import os

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
Q = gguf.GGMLQuantizationType


def sample():
    w = gguf.GGUFWriter(os.path.join(HERE, "sample.gguf"), "llama")
    w.add_uint8("sample.u8", 200)
    w.add_int8("sample.i8", -100)
    w.add_uint16("sample.u16", 60000)
    w.add_int16("sample.i16", -30000)
    w.add_uint32("sample.u32", 4000000000)
    w.add_int32("sample.i32", -2000000000)
    w.add_float32("sample.f32", 0.1)
    w.add_uint64("sample.u64", 1 << 63)
    w.add_int64("sample.i64", -(1 << 62))
    w.add_float64("sample.f64", 0.1)
    w.add_bool("sample.bool", True)
    w.add_string("sample.string", "naïve 🦙")
    w.add_array("sample.i32s", [1, -2, 3])
    w.add_array("sample.f32s", [0.5, -0.25])
    w.add_array("sample.bools", [True, False, True])
    w.add_array("tokenizer.ggml.tokens", ["<s>", "a", "Ġb", ""])
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_chat_template("{{ messages }}")
    values = (np.arange(512, dtype=np.float32) - 200).reshape(2, 256) / 64
    w.add_tensor("f32", values)
    w.add_tensor("f16", values.astype(np.float16))
    w.add_tensor("three.dimensions", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    for ty in (Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0):
        w.add_tensor(ty.name.lower(), gguf.quants.quantize(values, ty), raw_dtype=ty)
    others = (Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4, Q.NVFP4, Q.Q2_K, Q.IQ3_S)
    for seed, ty in enumerate(others):
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[ty]
        blocks = 2 * block_bytes * 256 // block_len
        w.add_tensor(ty.name.lower(), ((np.arange(blocks) * 7 + seed) % 256).astype(np.uint8).reshape(2, -1), raw_dtype=ty)
    finish(w)


def split():
    w = gguf.GGUFWriter(os.path.join(HERE, "split.gguf"), "llama", split_max_tensors=2)
    w.add_block_count(1)
    for n in range(6):
        w.add_tensor(f"tensor.{n}", np.full(3, n, np.float32))
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


sample()
split()
