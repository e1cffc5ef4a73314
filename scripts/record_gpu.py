#!/usr/bin/env python3
"""Measures a model of Muse Glimmer 30B's size on a GPU, beside llama.cpp if it is given, and writes a record.

    scripts/record_gpu.py --muser target/release/muser --commit COMMIT --out bench/records/h200.json
                          [--model FILE.gguf] [--llama DIR] [--suite NAME ...]

Makes the model with `muser make-model` unless one is given. DIR holds llama-bench and llama-batched-bench, built with CUDA
(scripts/build_llama_cpp.sh); both programs read the same file. Each row has its own samples, in tokens per second, and is
written as soon as it is there. Suites: see SUITES; all of them if none is named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import handoff_world as world

DEPTHS = "2048,8192,32768,65536,98304,128960"
# Flags of `muser bench`, and the same tests for llama-bench.
SUITES = {
    "short": ["-p", "512,2048,4096", "-n", "64", "-r", "5"],
    "batches": ["-p", "0", "-n", "32", "-np", "1,8,32", "-d", "0,8192", "-r", "3"],
    "depths": ["-p", "2048", "-n", "32", "-d", DEPTHS, "-r", "3"],
    "whole": ["-p", "131008", "-n", "0", "-r", "1"],
}
# llama.cpp: its own choice of steps, flash attention, keys and values as f16, which are its fastest.
LLAMA = {
    "short": ["llama-bench", "-p", "512,2048,4096", "-n", "64", "-r", "3"],
    "batches": ["llama-batched-bench", "-npp", "128", "-ntg", "32", "-npl", "1,8,32", "-c", "8192"],
    "depths": ["llama-bench", "-p", "2048", "-n", "32", "-d", "2048,8192,32768,65536", "-r", "1"],
}


def run(command):
    """Standard output of a command that must succeed, and its seconds."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout, round(time.monotonic() - start, 1)


def gpu():
    """Name, driver, clocks and power of the first GPU, as its own tool tells."""
    fields = "name,driver_version,clocks.max.sm,power.limit"
    text, _ = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"])
    return dict(zip(fields.split(","), (part.strip() for part in text.split(","))))


def of_muser(row):
    kept = {name: row[name] for name in ("kv", "n_prompt", "n_gen", "n_depth", "n_parallel")}
    return {"program": "muser", **kept, "samples_ts": [round(sample, 1) for sample in row["samples_ts"]]}


def of_llama(row):
    if "speed_tg" in row:
        return {"program": "llama.cpp", "n_gen": row["tg"], "n_depth": row["pp"], "n_parallel": row["pl"],
                "samples_ts": [round(row["speed_tg"], 1)]}
    kept = {name: row[name] for name in ("n_prompt", "n_gen", "n_depth", "n_ubatch", "type_k", "flash_attn")}
    return {"program": "llama.cpp", **kept, "samples_ts": [round(sample, 1) for sample in row["samples_ts"]]}


def llama_command(folder, model, suite):
    program, *flags = LLAMA[suite]
    command = [os.path.join(folder, program), "-m", model, "-ngl", "99", "-fa", "1", *flags]
    return command + (["-o", "json", "-ub", "2048"] if program == "llama-bench" else ["--output-format", "jsonl", "-ub", "2048"])


def rows_of(text):
    """Rows of a JSON array, or of a JSON object a line."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muser", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model")
    parser.add_argument("--llama")
    parser.add_argument("--suite", action="append", choices=SUITES)
    args = parser.parse_args()
    record = {
        "what": "Muse Glimmer 30B's geometry on one GPU: prefill and decode, tokens/s",
        "command": "scripts/record_gpu.py (muser make-model --like muse-30b, muser bench --device cuda)",
        "commit": args.commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"gpu": gpu(), **world.machine()},
        "model": "random weights of muser make-model --like muse-30b --seed 1: Q4_K_M types, 16.93 GB",
        "process_seconds": {},
        "tests": [],
    }

    def keep(suite, program, tests, seconds):
        record["process_seconds"][f"{program}, {suite}"] = seconds
        for test in tests:
            record["tests"].append(test)
            print(json.dumps(test), flush=True)
        with open(args.out, "w", encoding="utf-8") as out:
            json.dump(record, out, indent=1)
            out.write("\n")

    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        model = args.model or os.path.join(folder, "muse-30b.gguf")
        if not args.model:
            _, record["make_model_seconds"] = run([args.muser, "make-model", "--like", "muse-30b", "--seed", "1", model])
        for suite in args.suite or SUITES:
            text, seconds = run([args.muser, "bench", "-m", model, "--device", "cuda", "-o", "json", *SUITES[suite]])
            keep(suite, "muser", [of_muser(row) for row in json.loads(text)], seconds)
            if args.llama and suite in LLAMA:
                text, seconds = run(llama_command(args.llama, model, suite))
                keep(suite, "llama.cpp", [of_llama(row) for row in rows_of(text)], seconds)


if __name__ == "__main__":
    main()
