#!/usr/bin/env python3
"""Hands off payloads of very different sizes over a real lane, and records rates and the peak memory of both ends.

    handoff_sizes.py RECORD [MIB...]

Builds and runs crates/cluster/examples/handoff_sizes.rs, which compares every page. Without sizes: 1, 99 and 101 MiB, 1.01
and 4.01 GiB. Fails if one does not arrive, or if memory grows with the size.
"""

import json
import pathlib
import subprocess
import sys

import handoff_world as world

SIZES = [1, 99, 101, 1034, 4106]
COMMAND = ["cargo", "run", "--release", "-q", "-p", "muser-cluster", "--example", "handoff_sizes", "--"]
# The sender's backlog and one frame, twice because a growing buffer is copied, and the programs themselves.
PEAK_KIB_MAX = 160 << 10


def main():
    record, *sizes = sys.argv[1:]
    sizes = [int(size) for size in sizes] or SIZES
    done = subprocess.run([*COMMAND, *map(str, sizes)], cwd=world.ROOT, stdout=subprocess.PIPE, text=True)
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    for trial in trials:
        print(trial)
    whole = done.returncode == 0 and [trial["payload_bytes"] for trial in trials] == [size << 20 for size in sizes]
    bounded = all(trial[end] <= PEAK_KIB_MAX for trial in trials for end in ("receiver_peak_kib", "sender_peak_kib"))
    world.record(
        record,
        "made-up pages handed off over TLS between two processes of one machine, every page compared: sizes and memory",
        f"scripts/handoff_sizes.py {pathlib.Path(record).name} {' '.join(map(str, sizes))}",
        all_arrived=whole, peak_kib_max=PEAK_KIB_MAX, memory_bounded=bounded, trials=trials,
    )
    sys.exit(0 if whole and bounded else 1)


if __name__ == "__main__":
    main()
