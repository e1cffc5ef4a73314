#!/usr/bin/env python3
"""Measures muser beside llama.cpp: interleaved rounds on one machine, medians with their spread, one JSON record.

usage: bench_against_llama.py --muser BIN --llama-bench BIN --out RECORD.json MODEL.gguf [...]
                              [--rounds 5] [-p 512] [-n 128] [-t 2] [--repack on|off|both] [--note TEXT]

The engines alternate within every round (and the order flips every round), because a shared machine drifts by more than the
engines differ: only figures of the same minutes are comparable. With `--repack both` llama.cpp is measured both ways and its
better median counts. A ratio above 1 means muser is faster; "paired" is the median of the per-round ratios, which drift
cannot move. Call a gap below the larger coefficient of variation a tie."""
import argparse
import datetime
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

# A bench call of a 1B model takes under a minute; a hung engine must not stop the whole measurement silently.
LIMIT_S = 900


def bench(command):
    """Runs one bench command. Returns {"pp512": tokens/s, "tg128": tokens/s}."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit {done.returncode}\n{done.stderr.decode(errors='replace')[-2000:]}")
    speeds = {}
    for test in json.loads(done.stdout):
        if test["n_prompt"] and test["n_gen"]:
            continue
        name = f"pp{test['n_prompt']}" if test["n_prompt"] else f"tg{test['n_gen']}"
        speeds[name] = float(test["avg_ts"])
    return speeds


def engines(args, model):
    """Command of every contender; the first is muser."""
    shape = ["-m", str(model), "-p", str(args.p), "-n", str(args.n), "-r", "1", "-t", str(args.t)]
    commands = {"muser": [args.muser, "bench", *shape, "-o", "json"]}
    rival = [args.llama_bench, *shape, "-fa", "1", "-o", "json"]
    if args.repack != "off":
        commands["llama.cpp"] = rival
    if args.repack != "on":
        commands["llama.cpp, repack off"] = [*rival, "--repack", "0"]
    return commands


def spread(values):
    mean = statistics.fmean(values)
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
        "cv": round(statistics.stdev(values) / mean, 4) if len(values) > 1 else 0.0,
        "rounds": [round(v, 3) for v in values],
    }


def measure(args, model):
    commands = engines(args, model)
    rounds, loads = {name: [] for name in commands}, []
    for i in range(args.rounds):
        for name in list(commands) if i % 2 == 0 else reversed(commands):
            rounds[name].append(bench(commands[name]))
        loads.append(round(os.getloadavg()[0], 2))
        print(f"{model.name}: round {i + 1} of {args.rounds}, load {loads[-1]}", file=sys.stderr, flush=True)
    tests = {}
    for test in rounds["muser"][0]:
        series = {name: [r[test] for r in runs] for name, runs in rounds.items()}
        rivals = [name for name in series if name != "muser"]
        best = max(rivals, key=lambda name: statistics.median(series[name]))
        tests[test] = {
            **{name: spread(values) for name, values in series.items()},
            "against": best,
            "ratio": round(statistics.median(series["muser"]) / statistics.median(series[best]), 3),
            "ratio_paired": round(statistics.median(a / b for a, b in zip(series["muser"], series[best])), 3),
        }
    return {
        "model": model.name,
        # Names only: where a file lies on this machine is nobody's business.
        "commands": {n: shlex.join(pathlib.Path(w).name if "/" in w else w for w in c) for n, c in commands.items()},
        "load_after_rounds": loads,
        "tests": tests,
    }


def git(*command):
    here = pathlib.Path(__file__).resolve().parent
    return subprocess.run(["git", "-C", str(here), *command], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def cpu():
    with open("/proc/cpuinfo") as file:
        fields = dict(map(str.strip, line.split(":", 1)) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    simd = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx_vnni") if f in fields.get("flags", "").split()]
    return {"model": fields.get("model name", "unknown"), "simd": simd, "cpus": os.cpu_count()}


def print_table(models):
    print(f"{'model':36} {'test':6} {'muser':>22} {'llama.cpp':>22} {'ratio':>6} {'paired':>6}")
    for entry in models:
        for name, test in entry["tests"].items():
            text = {e: f"{s['median']:.1f} [{s['min']:.0f}-{s['max']:.0f}] {s['cv']:.0%}"
                    for e, s in ((e, test[e]) for e in ("muser", test["against"]))}
            mark = "*" if test["against"] != "llama.cpp" else ""
            print(f"{entry['model']:36} {name:6} {text['muser']:>22} {text[test['against']] + mark:>22} "
                  f"{test['ratio']:6.2f} {test['ratio_paired']:6.2f}")
    print("tokens/s: median [min-max] coefficient of variation; * = with repack off, which was faster")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--muser", required=True)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--repack", choices=("on", "off", "both"), default="on", help="llama.cpp's weight repacking")
    parser.add_argument("--note", default="", help="one line kept in the record, e.g. which build of llama.cpp this is")
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    record = {
        "what": "muser beside llama.cpp, interleaved, tokens/s",
        "command": f"scripts/bench_against_llama.py --rounds {args.rounds} -p {args.p} -n {args.n} -t {args.t} --repack {args.repack}",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "tree_clean": not git("status", "--porcelain", "--untracked-files=no"),
        "machine": cpu(),
        "threads": args.t,
        "rounds": args.rounds,
        "note": args.note,
        "models": [],
    }
    for model in args.models:
        record["models"].append(measure(args, model))
        # After every model, so that a failure in the last one does not lose an hour.
        with open(args.out, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    print_table(record["models"])


if __name__ == "__main__":
    main()
