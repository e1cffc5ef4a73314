#!/usr/bin/env python3
"""Checks muser on a real instruct model: token ids, the same bits on every way, and an answer that makes sense.

usage: check_smollm2.py MUSER MODEL.gguf GOLDENS.json
MODEL: SmolLM2-135M-Instruct, as scripts/fetch_smollm2.sh leaves it. GOLDENS: crates/text/tests/golden/smollm2.json, made with
llama.cpp. Exits 1 with a line for everything that is wrong."""
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

QUESTION = "What is the capital of France?\n"


def muser(*args, stdin=""):
    done = subprocess.run([str(a) for a in args], input=stdin, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{' '.join(map(str, args))}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def wrong_ids(program, model, goldens, folder):
    """Texts whose ids are not the golden ones."""
    cases = json.loads(goldens.read_text(encoding="utf-8"))
    file = folder / "text"
    for kind, flags in (("plain", ["--no-parse-special"]), ("special", [])):
        for case in cases[kind]:
            # The line break at the end of a prompt file does not count.
            file.write_bytes(case["text"].encode() + b"\n")
            ids = json.loads(muser(program, "tokenize", "-m", model, "-f", file, "--ids", "--no-bos", *flags))
            if ids != case["ids"]:
                yield f"{kind} {case['text']!r}: {ids}, llama.cpp has {case['ids']}"


def wrong_bits(program, model, folder):
    """Ways of computing one prompt's logits that give other bits than the first."""
    ids, out = folder / "ids", folder / "logits.f32"
    ids.write_text(" ".join(str(7 * i % 49152) for i in range(80)))
    kernels = json.loads(muser(program, "doctor", "--json"))["kernels"]
    # The fastest ones, then the others, each with other chunks and threads.
    ways = [(kernels[-1], 80, 1), (kernels[-1], 1, 2), (kernels[-1], 7, 2), (kernels[-1], 512, 3)]
    ways += [(name, 64, 2) for name in kernels[:-1]]
    for kv in ("q8", "f16"):
        first = None
        for name, chunk, threads in ways:
            flags = ["--kv", kv, "--kernels", name, "--chunk", chunk, "-t", threads]
            muser(program, "logits", model, "--ids", ids, "--out", out, *flags)
            digest = hashlib.sha256(out.read_bytes()).hexdigest()
            first = first or digest
            if digest != first:
                yield f"{kv} cache, {name} kernels, chunks of {chunk}, {threads} threads: other bits"


def main():
    program, model, goldens = (pathlib.Path(a) for a in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        wrong = [*wrong_ids(program, model, goldens, folder), *wrong_bits(program, model, folder)]
    # With its template's own system prompt this small model answers in French, in llama.cpp too.
    system = "You are a helpful assistant."
    answer = muser(program, "chat", "-m", model, "-sys", system, "--temp", "0", "-n", "40", stdin=QUESTION)
    if "Paris" not in answer:
        wrong.append(f"the capital of France: {answer!r}")
    print("\n".join(wrong) or "SmolLM2: ids, bits and answer are right")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
