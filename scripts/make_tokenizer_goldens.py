#!/usr/bin/env python3
"""Writes tokenizer goldens: what llama.cpp makes of texts chosen to disturb a byte-level BPE tokenizer.

usage: make_tokenizer_goldens.py LLAMA_PROBE MODEL.gguf OUT.json
OUT.json: {"plain": [{"text", "ids"}], "special": [the same]}. No BOS or EOS is added. "plain": parse_special=false, text
that looks like a control token is ordinary text. "special": parse_special=true."""
import json
import subprocess
import sys

ENGLISH = [
    "",
    "a",
    "Hello",
    "Hello, world!",
    " Hello",
    "Hello ",
    "The quick brown fox jumps over the lazy dog.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
    "Once upon a time there was a",
    "Pneumonoultramicroscopicsilicovolcanoconiosis",
    "ALL CAPS SHOUTING AND camelCaseWords and snake_case_words and kebab-case-words",
    "e.g. i.e. etc. U.S.A. Ph.D. Mr. Mrs.",
    "don't can't won't I'm you're they've we'll he'd it's",
    "DON'T CAN'T I'M YOU'RE THEY'VE WE'LL HE'D IT'S",
    "'s 't 're 've 'm 'll 'd 'S 'T 'x ''s '",
    "rock'n'roll o'clock ma'am y'all'd've",
    "don\u2019t it\u2019s we\u2019ll",
    "\u201cquoted\u201d \u2018single\u2019 \u2014 dash \u2013 dash\u2026",
    "\"straight\" 'quotes' `ticks` ``double'' ",
    "Wait... what?! No!!! Really??? :-) ;-( <3 ^_^",
    "a-b--c---d----e",
    "(parentheses) [brackets] {braces} <angles>",
    "100% sure & $5.00 #hashtag @user user@example.org",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9 co\u00f6perate \u00c5ngstr\u00f6m",
]

NUMBERS = [
    "0",
    "7",
    "42",
    "1234567890",
    " 1 22 333 4444 55555",
    "3.14159 -2.5e-10 1,000,000 0x1F 0b1010 1_000",
    "2024-02-29T23:59:59Z",
    "a1b2c3 4d5e6f v1.2.3-rc4",
    "x2 2x x 2",
    "192.168.0.1:8080",
    "+1 (555) 010-9999",
    "\u0661\u0662\u0663 \u0967\u0968\u0969 \uff11\uff12\uff13",
    "\u00bd \u00bc \u00b2 \u00b3 \u2075 x\u00b2+y\u00b2",
    "\u2160\u2161\u2162 \u2460\u2461 \u3007\u4e00\u4e8c",
    "\U0001d7d8\U0001d7d9\U0001d7da",
]

SPACES = [
    " ",
    "  ",
    "   ",
    "    ",
    "        ",
    "                                 ",
    "a b",
    "a  b",
    "a   b",
    "a    b",
    "a ",
    "a  ",
    " a",
    "  a",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    "\r",
    "\t",
    "\t\t",
    " \n",
    "\n ",
    " \n \n ",
    "a\nb",
    "a\n\nb",
    "a\n\n\nb",
    "a \n b",
    "a\r\nb\r\n",
    "a\tb\t\tc\t",
    "line one\nline two\n  indented\n\tand tabbed\n",
    "trailing spaces   \nnext",
    "  1  2   3\n 4",
    " !  ?   .",
    "\u00a0",
    "a\u00a0b \u00a0 c",
    "a\u2003b\u2009c\u200ad\u202fe\u3000f",
    "a\u200bb\ufeffc\u2060d",
    "a\u2028b\u2029c\u0085d",
    "\x0b\x0c a\x0bb\x0cc",
]

SCRIPTS = [
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002",
    "\u30ab\u30bf\u30ab\u30ca\u3068\u3072\u3089\u304c\u306a mixed\u3068English",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8\uc785\ub2c8\ub2e4.",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u0436",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5 \u03c3\u03c2",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "Ti\u1ebfng Vi\u1ec7t c\u00f3 d\u1ea5u",
    "\u0130stanbul \u0131\u015f\u0131k \u00df\u1e9e",
    "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u13a3\u13b3\u13a9 \u1200\u120e",
    "e\u0301 n\u0303 a\u030a o\u0308",
    "Z\u0351\u036b\u0343a\u0354\u0356l\u034d\u0359g\u0353o",
    "\ufb01 \ufb02 \u01c6 \u212b \u2126",
    "\uff21\uff22\uff23 \uff41\uff42\uff43 \u24b6\u24d0",
    "\U0001d54f\U0001d4d0\U0001d51e \U00010330\U00010331 \U00020000\U0002a6d6",
    "a\u200dd\u200cx \u202eright\u202c \u200ertl\u200f",
    "\ue000\uf8ff \U000f0000 \u0378 \ufffd \uffff",
]

SYMBOLS = [
    "\U0001f600",
    "Hi \U0001f44b\U0001f3fd there\U0001f389!!",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e9\U0001f1ea\U0001f1ef\U0001f1f5 1\ufe0f\u20e3 \u2764\ufe0f\u2764",
    "\u2200x\u2208\u211d: x\u00b2 \u2265 0 \u2227 \u221e \u2260 \u2205",
    "\u20ac5 \u00a310 \u00a5100 \u20bf1 \u00a2",
    "\u2190\u2191\u2192\u2193 \u2588\u2593\u2592\u2591 \u2500\u2502\u250c \u28ff",
    "\u00a9\u00ae\u2122 \u00a7\u00b6 \u2020\u2021 \u00b0C",
    "\x00",
    "a\x00b",
    "\x01\x02\x03\x1b[31mred\x1b[0m\x7f",
    "\u0080\u009f\u00ad",
    "\u0120\u010a\u0109 \u0120the",
]

CODE = [
    "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n",
    "def f(x):\n    if x > 0:\n        return x ** 2  # square\n    return None\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; }",
    "{\"key\": [1, 2.5, true, null], \"s\": \"a\\n\\u00e9\"}",
    "SELECT * FROM t WHERE id = 'x' AND n >= 10;",
    "<html><body class=\"a b\">&nbsp;</body></html>",
    "https://example.org/path?q=1&r=%20#frag",
    "C:\\dir\\file.txt ../a/b.c ~/x",
    "let x: Vec<Option<&'a str>> = vec![];",
    "a==b!=c<=d>=e&&f||g->h=>i::j//k/*l*/",
    "# Title\n\n* item\n* item\n\n```sh\nls -la | grep x\n```\n",
    "\\frac{a}{b} $\\sum_{i=0}^{n} x_i$",
]

LOOK_SPECIAL = [
    "<|endoftext|>",
    "a<|endoftext|>b",
    "<|im_start|>user\nHello<|im_end|>\n",
    "<|im_start|><|im_end|>",
    "<|im_start|> <|im_end|> <|IM_START|>",
    "<|im_start <|im_end| im_end|>",
    "<|<|im_end|>|>",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi\U0001f600<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|>  <|endoftext|>\n",
    "<s></s> [INST] <unk> <pad> <|eot_id|> <file_sep> <repo_name>x",
]

RUNS = [
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abababababababababababababababababababab",
    "================================",
    "........................",
    "ha" * 30,
    "\n" * 20,
    "\t" * 9 + "x",
    "the the the the the the the the",
]


def ask(probe, model, texts, special):
    asked = b"".join(b"%d\n%b" % (len(t.encode()), t.encode()) for t in texts)
    answer = subprocess.run([probe, "tokenize", model, str(int(special))], input=asked, stdout=subprocess.PIPE, check=True)
    lines = answer.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(texts), "one line of ids for every text"
    return [{"text": t, "ids": [int(i) for i in line.split()]} for t, line in zip(texts, lines)]


def main():
    probe, model, out = sys.argv[1:4]
    plain = ENGLISH + NUMBERS + SPACES + SCRIPTS + SYMBOLS + CODE + LOOK_SPECIAL + RUNS
    golden = {"plain": ask(probe, model, plain, False), "special": ask(probe, model, LOOK_SPECIAL + ["", "no special text"], True)}
    with open(out, "w") as file:
        # One case a line: a change of one case is a change of one line. ASCII only, so invisible characters stay visible.
        parts = [f'"{key}": [\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]" for key, cases in golden.items()]
        file.write("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    main()
