"""Writes random texts and the ids that llama.cpp gives for them, as `check_vocabularies` reads them.

    pip install gguf
    python random_goldens.py LLAMA_PROBE VOCABULARY.gguf OUT.gguf [--pre NAME] [--count N] [--seed N]

Copies the vocabulary to OUT.gguf (with another `tokenizer.ggml.pre` if --pre is given) and writes OUT.gguf.inp and
OUT.gguf.out. LLAMA_PROBE is built by `scripts/build_llama_cpp.sh`. Control tokens are not parsed, no BOS is added.
"""

import argparse
import random
import subprocess

import gguf

SEPARATOR = "\n__ggml_vocab_test__\n"
PIECES = [
    "a", "b", "Z", "Q", "hello", "World", "ABC", "the", " ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r",
    "'s", "'S", "'ll", "'LL", "'Re", "'", "1", "12", "3456", "½", "²", "Ⅻ", "٣", "!", "?!", "...", "/", "//", "\n/", "-",
    "_", "(", ")", "é", "É", "ß", "ñ", "Ω", "ω", "Ж", "ж", "ǅ", "ʰ", "ª", "中", "文", "の", "カ", "한", "ภ", "ा", "क",
    "\u0301", "\u0308", "\u200b", "\u200d", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "🦙", "👍🏽", "€", "→", "\x01",
    "\x7f", "<", ">", "|", "<|im_end|>", "<s>", "</s>", "<unk>", "<0x41>", "[INST]", "\u2581", "\u2581\u2581", "{", "}",
    "\"", "\\", "$", "+", "^", "`", "~", "#", "@", "&", "%", "*", "=", ":", ";", ",", ".",
]  # fmt: skip


def text(source):
    """A text of up to 24 pieces, some of them any character that UTF-8 can encode."""
    pieces = []
    for _ in range(source.randrange(1, 25)):
        if source.random() < 0.08:
            code = source.choice([source.randrange(0x20, 0x3000), source.randrange(1, 0xD800), source.randrange(0xE000, 0x110000)])
            pieces.append(chr(code))
        else:
            pieces.append(source.choice(PIECES))
    return "".join(pieces)


def copy_with_pre(source, target, pre):
    """Copies a file of metadata, with `pre` in place of its way of cutting words."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = pre if name == "tokenizer.ggml.pre" else field.contents()
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, value, field.types[0], inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


parser = argparse.ArgumentParser()
parser.add_argument("probe")
parser.add_argument("vocabulary")
parser.add_argument("out")
parser.add_argument("--pre")
parser.add_argument("--count", type=int, default=3000)
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()
if options.pre:
    copy_with_pre(options.vocabulary, options.out, options.pre)
else:
    with open(options.vocabulary, "rb") as source, open(options.out, "wb") as target:
        target.write(source.read())
source = random.Random(options.seed)
texts = [text(source) for _ in range(options.count)]
raw = [t.encode() for t in texts]
request = b"".join(b"%d\n%s" % (len(t), t) for t in raw)
answer = subprocess.run([options.probe, "tokenize", options.out, "0"], input=request, stdout=subprocess.PIPE, check=True)
with open(options.out + ".inp", "w", newline="") as file:
    file.write(SEPARATOR.join(texts))
with open(options.out + ".out", "wb") as file:
    file.write(answer.stdout)
