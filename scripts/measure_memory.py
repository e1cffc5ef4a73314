#!/usr/bin/env python3
"""Measures the memory of models: peak of a process that answers a short prompt, and bytes of keys and values a position.

    measure_memory.py MUSER RECORD NAME=MODEL.gguf|NAME=shipped...

The peak has the file's mapped pages, the prepared weights, one step's buffers and 512 positions of keys and values.
"""

import json
import os
import pathlib
import subprocess
import sys

import handoff_world as world

CONTEXT = 512
ROUNDS = 3


def peak_bytes(command):
    """Peak of resident memory of a command, as the kernel accounts it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    told = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command}: {told}")
    return usage.ru_maxrss << 10, next(line for line in told.splitlines() if " weights, " in line)


def measure(muser, name, path):
    model = [] if path == "shipped" else ["-m", path]
    inspected = json.loads(subprocess.check_output([muser, "inspect", *model[1:], "--json"]))
    run = [muser, "run", *model, "--device", "cpu", "-c", str(CONTEXT), "-n", "8", "--temp", "0", "Once upon a time"]
    peaks = [peak_bytes(run) for _ in range(ROUNDS)]
    return {
        "model": name,
        "file_bytes": inspected["file_bytes"],
        "parameters": inspected["parameters"],
        "peak_bytes": [peak for peak, _ in peaks],
        "told": peaks[0][1],
        "kv_bytes_per_position": inspected["kv_bytes_per_position"],
    }


def main():
    muser, record, *models = sys.argv[1:]
    trials = [measure(muser, *model.split("=", 1)) for model in models]
    for trial in trials:
        print(trial)
    names = " ".join(f"{name}={pathlib.Path(path).name}" for name, path in (model.split("=", 1) for model in models))
    world.record(
        record,
        f"peak memory of `muser run` on the CPU, {CONTEXT} positions, and bytes of keys and values a position",
        f"scripts/measure_memory.py muser {pathlib.Path(record).name} {names}",
        models=trials,
    )


if __name__ == "__main__":
    main()
