#!/usr/bin/env python3
"""Measures a model of Muse Glimmer 30B's size on a GPU and writes a record.

    scripts/record_gpu.py --muser target/release/muser --commit COMMIT --out bench/records/h200.json [--model FILE.gguf]

Makes the model with `muser make-model` unless one is given, then runs `muser bench` for each row of TESTS. Times are of
whole `muser bench` runs: loading included in `process_seconds`, not in tokens per second.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

# (prompt tokens, generated tokens, depth, repetitions)
TESTS = [
    (512, 64, 0, 5),
    (2048, 0, 0, 5),
    (4096, 0, 0, 5),
    (2048, 32, 32768, 2),
    (2048, 32, 129024, 1),
]


def run(command):
    """The output of a command that must succeed, and its seconds."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout, seconds


def gpu():
    """Name, driver, clocks and power of the first GPU, as its own tool tells."""
    fields = "name,driver_version,clocks.max.sm,power.limit"
    text, _ = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"])
    return dict(zip(fields.split(","), (part.strip() for part in text.split(","))))


def processor():
    """Name of the processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muser", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model")
    args = parser.parse_args()
    record = {
        "what": "Muse Glimmer 30B's geometry on one GPU: prefill and decode, tokens/s",
        "command": "scripts/record_gpu.py (muser make-model --like muse-30b, muser bench --device cuda)",
        "commit": args.commit,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"gpu": gpu(), "processor": processor(), "cpus": os.cpu_count()},
        "model": "random weights of muser make-model --like muse-30b --seed 1: Q4_K_M types, 16.92 GB; q8 KV",
        "tests": [],
    }
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        model = args.model or os.path.join(folder, "muse-30b.gguf")
        if not args.model:
            _, seconds = run([args.muser, "make-model", "--like", "muse-30b", model])
            record["make_model_seconds"] = round(seconds, 1)
        for prompt, generate, depth, repetitions in TESTS:
            command = [args.muser, "bench", "-m", model, "--device", "cuda", "-o", "json"]
            command += ["-p", str(prompt), "-n", str(generate), "-d", str(depth), "-r", str(repetitions)]
            text, seconds = run(command)
            for row in json.loads(text):
                row.pop("model", None)
                row["samples_ts"] = [round(sample, 1) for sample in row["samples_ts"]]
                row["process_seconds"] = round(seconds, 1)
                record["tests"].append(row)
                print(f"p {row['n_prompt']:5} n {row['n_gen']:3} d {depth:6}: {row['samples_ts']}  {seconds:.1f} s", flush=True)
            with open(args.out, "w", encoding="utf-8") as out:
                json.dump(record, out, indent=1)
                out.write("\n")


if __name__ == "__main__":
    main()
