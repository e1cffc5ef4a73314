#!/usr/bin/env python3
"""Measures how long a decoding sequence waits for its tokens while a long prompt is computed, and writes one JSON record.

usage: measure_decode_latency.py --example BIN --out RECORD.json MODEL.gguf [...] [--rounds 5] [-t 2] [--attempts 20]
                                 [--note TEXT]

BIN is the engine's example `decode_latency`, built with --release: it does the measuring, one process per round with all
lengths of chunk in it. This adds how it was measured, and which share of the processors everybody else used meanwhile. A
round beside a busy neighbour, whatever came out, is measured again, so that the rounds that count are quiet ones."""
import argparse
import datetime
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

from bench_against_llama import cpu, git, spread

# An idle system uses a sixth of this; a compiler on one of two processors 17 times as much.
OTHERS_MAX = 0.03


def busy_seconds():
    """Processor time that the whole machine has used."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def share_of_others(work):
    """Which share of the processors others used while `work` ran, and what it returned."""
    start, others = time.monotonic(), busy_seconds() - own_seconds()
    result = work()
    others = busy_seconds() - own_seconds() - others
    return others / (time.monotonic() - start) / os.cpu_count(), result


def quiet_rounds(args, model):
    """What the example says of each round during which the others left the machine alone, and what they used."""
    command, kept = [args.example, str(args.t), "1", str(model)], []
    for _ in range(args.attempts):
        others, done = share_of_others(lambda: subprocess.run(command, stdout=subprocess.PIPE, check=True))
        print(f"{model.name}: others used {others:.1%} of the processors", file=sys.stderr, flush=True)
        if others <= OTHERS_MAX:
            kept.append((json.loads(done.stdout)[0], round(others, 4)))
        if len(kept) == args.rounds:
            return kept
    sys.exit(f"{model.name}: only {len(kept)} of {args.attempts} rounds were quiet")


def measure(args, model):
    """The rounds of one model, each figure with its spread over them."""
    rounds, others = zip(*quiet_rounds(args, model))
    chunks = []
    for same in zip(*(entry["chunks"] for entry in rounds)):
        waits = {
            name: {figure: spread([chunk[name][figure] for chunk in same]) for figure in ("median", "p95", "max")}
            for name in ("ms_between_tokens_during_prefill", "ms_between_tokens_alone")
        }
        chunks.append({
            **{name: same[0][name] for name in ("chunk_alone", "chunk_while_decoding")},
            **waits,
            "tokens_during_prefill": [tokens for chunk in same for tokens in chunk["tokens_during_prefill"]],
            "prefill_seconds": spread([chunk["prefill_seconds"]["median"] for chunk in same]),
        })
    common = {name: rounds[0][name] for name in ("model", "kernels", "kv", "threads", "prompt_tokens")}
    return {**common, "share_of_processors_used_by_others": others, "chunks": chunks}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--example", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--attempts", type=int, default=20, help="rounds tried per model at most")
    parser.add_argument("--note", default="", help="one line kept in the record")
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    record = {
        "what": "milliseconds from token to token of a decoding sequence while a prompt of 4,000 tokens is computed",
        "command": f"scripts/measure_decode_latency.py --rounds {args.rounds} -t {args.t} {' '.join(m.name for m in args.models)}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "tree_clean": not git("status", "--porcelain", "--untracked-files=no"),
        "machine": cpu(),
        "threads": args.t,
        "rounds": args.rounds,
        "note": args.note,
        "models": [measure(args, model) for model in args.models],
    }
    with open(args.out, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
