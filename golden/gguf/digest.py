#!/usr/bin/env python3
"""Prints the digests of a GGUF file, by the byte tables of the crate's module `digest` but with other code.
usage: digest.py FILE...   (pip install gguf==0.19.0 blake3)"""
import struct
import sys

import blake3
import gguf


def field(data):
    return struct.pack("<Q", len(data)) + data


def tensors(reader):
    h = blake3.blake3(derive_key_context="muser 2026 digest of tensors, version 1")
    h.update(struct.pack("<Q", len(reader.tensors)))
    for t in sorted(reader.tensors, key=lambda t: t.name.encode()):
        h.update(field(t.name.encode()))
        h.update(struct.pack("<II", int(t.tensor_type), len(t.shape)))
        h.update(b"".join(struct.pack("<Q", int(n)) for n in t.shape))
        h.update(field(t.data.tobytes()))
    return h.hexdigest()


def tokenizer(reader):
    keys = [k for k in reader.fields if k.startswith("tokenizer.") and not k.startswith("tokenizer.chat_template")]
    h = blake3.blake3(derive_key_context="muser 2026 digest of tokenizer, version 1")
    h.update(struct.pack("<Q", len(keys)))
    for key in sorted(keys, key=str.encode):
        # The parts of a field are: length of the key, key, type, then the value as stored.
        parts = reader.fields[key].parts
        h.update(field(key.encode()))
        h.update(parts[2].tobytes())
        h.update(field(b"".join(part.tobytes() for part in parts[3:])))
    return h.hexdigest()


for path in sys.argv[1:]:
    reader = gguf.GGUFReader(path)
    print(path, "tensors", tensors(reader), "tokenizer", tokenizer(reader))
