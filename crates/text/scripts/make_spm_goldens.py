"""Makes a tiny SentencePiece vocabulary and writes what llama.cpp makes of texts with it.

    pip install gguf
    python make_spm_goldens.py LLAMA_PROBE tests/golden

Writes tiny-spm-vocab.json (the vocabulary, as `extract_vocabulary.py` does) and tiny-spm.json (the goldens).
LLAMA_PROBE is built by `scripts/build_llama_cpp.sh`.
"""

import collections
import json
import os
import random
import subprocess
import sys
import tempfile

import gguf

SPACE = "\u2581"
LEARNT_FROM = """
the rain fell on the roof of the house and the water ran over the stones to the river . all of the children were in the
house and heard the rain . one of them said that the river would rise over the road . then they went to the window and
saw the light of the other houses on the hill , and the water that was running there . in the morning the sun came out ,
the stones were dry and they went down to the river together . größer als sonst war der fluß , et la rivière était haute .
"""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def learnt(pieces, merges):
    """Joins the most frequent neighbours of the words of the text, `merges` times."""
    words = [[SPACE, *word] for word in LEARNT_FROM.split()]
    for _ in range(merges):
        pairs = collections.Counter(pair for word in words for pair in zip(word, word[1:]))
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        pieces.append(left + right)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == (left, right):
                    word[at : at + 2] = [left + right]
                at += 1


def vocabulary():
    """Tokens, scores and types."""
    tokens = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    tokens += [("<0x%02X>" % byte, 0.0, BYTE) for byte in range(256)]
    pieces = []
    learnt(pieces, 90)
    # Scores as the trainer gives them, but every third piece shares that of the one before it.
    tokens += [(piece, -float(rank - (rank % 3 == 2)), NORMAL) for rank, piece in enumerate(pieces)]
    tokens += [(SPACE * 2, -200.0, NORMAL), (SPACE * 4, -201.0, NORMAL), ("unused", -1.0, UNUSED), ("un", -0.5, UNUSED)]
    tokens += [("<tool>", 0.0, USER_DEFINED), ("  x", 0.0, USER_DEFINED), ("[INST]", 0.0, CONTROL)]
    characters = sorted(set("".join(LEARNT_FROM.split())) | set("abcdefghijklmnopqrstuvwxyz" + SPACE))
    tokens += [(character, -300.0 - at, NORMAL) for at, character in enumerate(characters)]
    seen = set()
    return [token for token in tokens if not (token[0] in seen or seen.add(token[0]))]


def texts():
    """Texts that try every rule, and random ones."""
    fixed = ["", " ", "  ", "   ", "     ", "\n", "\t", "a", " a", "a ", "the", " the", "the the", "thethe", "unused un"]
    fixed += ["the rain on the hill", "Größer!", "🦙", "x🦙x", "\u2581the", "a\u2581b", "<tool>", "a <tool> b", "the  x"]
    fixed += ["<s>", "</s>", "[INST]the[INST]", "<s>the</s>", "a<s> b", "<s><s>", "<unk>", "<0x41>", "\u0000\u0001", "é"]
    source = random.Random(3)
    pieces = "the|rain|er|he|in|r|t|o| | |  |\n|river|over|there|ß|é|🦙|.|<tool>|<s>|[INST]|un|used|,|A|\u2581".split("|")
    return fixed + ["".join(source.choices(pieces, k=source.randrange(1, 16))) for _ in range(160)]


def ask(probe, path, special):
    raw = [text.encode() for text in texts()]
    request = b"".join(b"%d\n%s" % (len(text), text) for text in raw)
    answer = subprocess.run([probe, "tokenize", path, special], input=request, stdout=subprocess.PIPE, check=True)
    lines = answer.stdout.decode().split("\n")[: len(raw)]
    return [{"text": text, "ids": [int(id) for id in line.split()]} for text, line in zip(texts(), lines)]


def write(path, value):
    rows = (f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
    with open(path, "w") as file:
        file.write("{\n" + ",\n".join(rows) + "\n}\n")


probe, directory = sys.argv[1:]
tokens = vocabulary()
with tempfile.TemporaryDirectory() as scratch:
    path = os.path.join(scratch, "tiny.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _, _ in tokens])
    writer.add_token_scores([score for _, score, _ in tokens])
    writer.add_token_types([kind for _, _, kind in tokens])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    goldens = {"plain": ask(probe, path, "0"), "special": ask(probe, path, "1")}
with open(os.path.join(directory, "tiny-spm.json"), "w") as file:
    lists = (f' "{key}": [\n' + ",\n".join("  " + json.dumps(g, ensure_ascii=False) for g in list_) + "\n ]" for key, list_ in goldens.items())
    file.write("{\n" + ",\n".join(lists) + "\n}\n")
write(
    os.path.join(directory, "tiny-spm-vocab.json"),
    {
        "model": "llama",
        "token_types": [kind for _, _, kind in tokens],
        "scores": [score for _, score, _ in tokens],
        "tokens": [token for token, _, _ in tokens],
        "merges": [],
    },
)
