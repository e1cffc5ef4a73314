"""Cuts random texts into words by the patterns that vocabularies' own tokenizers publish.

    pip install regex
    python make.py OUT.json

OUT.json: {name of the vocabulary: [words of a text, ...]}; the text is what its words are together. Sources: the patterns of
Llama 3 and Llama 4 (llama_models), of Qwen (its tokenizer), and of Mistral's Tekken (mistral_common).
"""

import json
import random
import sys

import regex

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(contraction, numbers):
    word = r"[^\r\n\p{L}\p{N}]?"
    return "|".join([word + UPPER + "*" + LOWER + "+" + contraction, word + UPPER + "+" + LOWER + "*" + contraction, numbers, REST])


PATTERNS = {
    "llama-bpe": LLAMA3,
    "qwen2": QWEN2,
    "qwen35": QWEN35,
    "llama4": cased(CONTRACTION, r"\p{N}{1,3}"),
    "tekken": cased("", r"\p{N}"),
}
# Capital, title case and small letters of several scripts, letters without case, modifiers, marks of each category.
LETTERS = list("AZazßſÉéÐĐđΣσςЖжԱաᲀꟲ") + ["ǅ", "ᾈ", "ʰ", "ー", "中", "ह", "ب", "ก", "한", "ª", "\u0301", "\u093f", "\u0903", "\u20dd"]
OTHERS = list("'’sStTrevml  \t\n\r\u00a0\u30001½٣Ⅷ²!-/_.€🦙\u200d\u0000")
SENTENCES = [
    "हिन्दी में लिखा है", "Người Việt Nam", "e\u0301te\u0301 E\u0301TE\u0301", "ΑΒΓ αβγ Αβγ", "DON'T we'Ll it'ſ I'M he'D",
    "McDonaldʼs XMLHttpRequest iPhone15", "สวัสดีครับ ผม", "العَرَبِيَّة", "Ǆ ǅ ǆ ǅabc ABǅ", "a\u0301'S \u0301ABC !\u0301x",
]  # fmt: skip


def texts():
    yield from SENTENCES
    chance = random.Random(1)
    for _ in range(150):
        pool = LETTERS if chance.random() < 0.3 else LETTERS + OTHERS
        yield "".join(chance.choice(pool) for _ in range(chance.randrange(1, 14)))


def words(pattern, text):
    found = [match.group() for match in regex.finditer(pattern, text)]
    assert "".join(found) == text, text
    return found


goldens = {name: [words(pattern, text) for text in texts()] for name, pattern in PATTERNS.items()}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    lines = (f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, cuts)) + "\n]" for name, cuts in goldens.items())
    out.write("{" + ",\n".join(lines) + "}\n")
