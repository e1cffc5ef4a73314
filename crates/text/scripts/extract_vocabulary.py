"""Writes a GGUF file's vocabulary as JSON, as the tests and `examples/check_goldens.rs` read it.

    pip install gguf
    python extract_vocabulary.py MODEL.gguf > VOCABULARY.json
"""

import json
import sys

from gguf import GGUFReader

fields = GGUFReader(sys.argv[1]).fields


def value(name, default=None):
    """What the file says about `tokenizer.ggml.NAME`."""
    field = fields.get("tokenizer.ggml." + name)
    return default if field is None else field.contents()


vocabulary = {
    "model": value("model"),
    "pre": value("pre"),
    "bos": value("bos_token_id"),
    "eos": value("eos_token_id"),
    "eot": value("eot_token_id"),
    "eom": value("eom_token_id"),
    "unknown": value("unknown_token_id"),
    "padding": value("padding_token_id"),
    "add_bos": value("add_bos_token"),
    "add_eos": value("add_eos_token"),
    "add_space_prefix": value("add_space_prefix"),
    "token_types": value("token_type"),
    "tokens": value("tokens"),
    "scores": value("scores"),
    "merges": value("merges", []),
}
print("{")
print(",\n".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in vocabulary.items()))
print("}")
