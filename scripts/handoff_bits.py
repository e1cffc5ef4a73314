#!/usr/bin/env python3
"""Answers prompts of many lengths here and with a producer, and records times, bytes and whether the bits are the same.

    handoff_bits.py MUSER RECORD MODEL=LENGTH,LENGTH,... [MODEL=...]

Each trial is `muser demo`: the producer is a process of its own, reached over loopback TLS. MODEL is a file, or `shipped`.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def trial(muser, model, kv, length):
    command = [muser, "demo", "--tokens", str(length), "--kv", kv, "-n", "8"]
    if model != "shipped":
        command += ["-m", model]
    ended = subprocess.run(command, capture_output=True, text=True)
    cells = ([cell.strip() for cell in line.split("|")] for line in ended.stdout.splitlines() if line.startswith("|"))
    rows = {name: (local, remote) for _, name, local, remote, _ in cells}
    if ended.returncode not in (0, 1) or "pages brought" not in rows:
        raise SystemExit(f"{command}: {ended.stderr}")
    seconds = lambda text: float(text.split()[0])
    return {
        "model": pathlib.Path(model).name,
        "kv": kv,
        "prompt_tokens": length,
        "same_bits": rows["same tokens and logits, bit for bit"][1] == "yes" and ended.returncode == 0,
        "first_token_local_s": seconds(rows["first token after"][0]),
        "first_token_producer_s": seconds(rows["first token after"][1]),
        "handoff_s": seconds(rows["of which the handoff"][1]),
        "pages": int(rows["pages brought"][1]),
        "payload_bytes": int(rows["bytes brought"][1]),
    }


def machine():
    models = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"model": models[0] if models else "unknown", "cpus": os.cpu_count()}


def main():
    muser, record, *models = sys.argv[1:]
    trials = []
    for model, lengths in (entry.split("=") for entry in models):
        for kv in ("q8", "f16"):
            for length in lengths.split(","):
                trials.append(trial(muser, model, kv, int(length)))
                print(trials[-1], flush=True)
    wrong = [found for found in trials if not found["same_bits"]]
    shown = " ".join(f"{pathlib.Path(model).name}={lengths}" for model, lengths in (e.split("=") for e in models))
    text = json.dumps({
        "what": "a prompt answered here and with a producer on the same machine: bits, times, bytes",
        "command": f"scripts/handoff_bits.py target/release/muser {pathlib.Path(record).name} {shown}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": run(["git", "rev-parse", "HEAD"]),
        "tree_clean": run(["git", "status", "--porcelain", "--untracked-files=no"]) == "",
        "machine": machine(),
        "note": "producer and decoder share the machine and its processors, so that the times show the cost of the way, not a gain",
        "trials": trials,
        "different": wrong,
    }, indent=1)
    pathlib.Path(record).write_text(text + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
