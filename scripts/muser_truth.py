#!/usr/bin/env python3
"""Records what muser makes of glimmer-mini, by the measure and in the form of llama_truth.py, to be read beside its record.

usage: muser_truth.py MUSER MODELS IDS OUT.json      (needs numpy)
MUSER: the program, built from this checkout. MODELS: holds glimmer-mini-{F16,Q8_0,Q4_K_M}.gguf and ref-{...}.json (and
.f32). IDS: holds prompts-ids.txt and val-ids.txt, as `llama_truth.py --keep IDS` leaves them. The logits do not depend on
the machine; it is recorded all the same."""
import argparse
import datetime
import os
import pathlib
import platform
import subprocess
import tempfile

from llama_truth import FILES, HERE, SCORED_FROM, THREADS, WINDOW, WINDOWS, cpu_name, python, rounded, run, write_record

KV = ("q8", "f16")


def measure(args, work, quant, kv):
    model, out = args.models / f"glimmer-mini-{quant}.gguf", work / "logits.f32"

    def logits(ids):
        run(args.muser, "logits", model, "--ids", args.ids / ids, "--out", out, "--kv", kv, "--threads", THREADS)

    logits("prompts-ids.txt")
    result = python("compare_logits.py", args.models / f"ref-{quant}.json", out)
    logits("val-ids.txt")
    perplexity = python("perplexity.py", args.ids / "val-ids.txt", out, "--vocab", 4096, "--from", SCORED_FROM)
    out.unlink()
    prompts = {p["name"]: {key: p[key] for key in ("kl_mean", "max_dlogit", "top1")} for p in result["prompts"]}
    return rounded({"total": result["total"], **prompts}), rounded(perplexity)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("muser", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("ids", type=pathlib.Path)
    parser.add_argument("out")
    args = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as work:
        for quant in FILES:
            for kv in KV:
                against, perplexity = measure(args, pathlib.Path(work), quant, kv)
                rows.append({"file": quant, "kv": kv, "against_reference": against, "perplexity": perplexity})
                total = against["total"]
                print(f"{quant:7} KV {kv:4}  KL {total['kl_mean']:.2e}  max |d| {total['max_dlogit']:.4f}  "
                      f"top-1 {total['top1']:.2%}  ppl {perplexity['perplexity']:.4f}", flush=True)
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    record = {
        "what": "muser on glimmer-mini against the float64 reference, and perplexity on held-out text",
        "command": "scripts/muser_truth.py MUSER MODELS IDS OUT",
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_name(), "cpus": os.cpu_count(), "system": platform.system(), "threads": THREADS},
        "commands": [
            f"muser logits glimmer-mini-FILE.gguf --ids prompts-ids.txt --out logits.f32 --kv KV --threads {THREADS}",
            "compare_logits.py ref-FILE.json logits.f32 --json",
            f"muser logits glimmer-mini-FILE.gguf --ids val-ids.txt --out logits.f32 --kv KV --threads {THREADS}",
            f"perplexity.py val-ids.txt logits.f32 --vocab 4096 --from {SCORED_FROM} --json",
        ],
        "perplexity_over": f"val.txt tokenised whole, no BOS; first {WINDOWS} windows of {WINDOW} ids, each from an empty "
                           f"cache; window positions {SCORED_FROM}..{WINDOW - 1} scored, each by the row before it",
        "results": rows,
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
