#!/usr/bin/env python3
"""Writes a random llama of 1.1 B parameters as an F16 GGUF: a speed test of real size that needs no download.

usage: make_synthetic_llama.py TOKENIZER.json OUT.gguf [--layers 16] [--seed 1]      (needs gguf, numpy)
TOKENIZER.json: a Hugging Face byte-level BPE tokenizer (glimmer-mini's); padded with unused tokens to 32000 entries, so
that the file loads everywhere. The text it makes is noise; speed does not depend on the values. Quantise the result with
llama-quantize. Same numpy, same seed: same file."""
import argparse
import json

import gguf
import numpy as np

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT = 2048, 8192, 32, 8, 64, 32000, 8192
SIGMA = 0.02


def add_metadata(writer, layers):
    writer.add_name("synth1b")
    writer.add_description("random weights, for speed measurements only")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)


def add_tokenizer(writer, path):
    with open(path) as file:
        tokenizer = json.load(file)
    control = {a["content"]: a["id"] for a in tokenizer["added_tokens"]}
    known = {**tokenizer["model"]["vocab"], **control}
    names = [f"[unused{i}]" for i in range(VOCAB)]
    for name, i in known.items():
        names[i] = name
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.CONTROL if n in control else gguf.TokenType.NORMAL for n in names])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(control["<|endoftext|>"])
    writer.add_add_bos_token(False)


def shapes(layers):
    """Name and shape (rows, columns) of every matrix, in file order."""
    yield "token_embd.weight", (VOCAB, HIDDEN)
    yield "output.weight", (VOCAB, HIDDEN)
    for i in range(layers):
        yield f"blk.{i}.attn_q.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield f"blk.{i}.attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"blk.{i}.attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"blk.{i}.attn_output.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield f"blk.{i}.ffn_gate.weight", (FFN, HIDDEN)
        yield f"blk.{i}.ffn_up.weight", (FFN, HIDDEN)
        yield f"blk.{i}.ffn_down.weight", (HIDDEN, FFN)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    writer = gguf.GGUFWriter(args.out, "llama")
    add_metadata(writer, args.layers)
    add_tokenizer(writer, args.tokenizer)
    ones = np.ones(HIDDEN, np.float32)
    writer.add_tensor("output_norm.weight", ones)
    for i in range(args.layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", ones)
    rng = np.random.default_rng(args.seed)
    for name, shape in shapes(args.layers):
        writer.add_tensor(name, (rng.standard_normal(shape, np.float32) * np.float32(SIGMA)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
