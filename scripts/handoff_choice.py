#!/usr/bin/env python3
"""Whether a server chooses the faster way for prompts of many lengths: computing here, or a producer over a slow wire.

    handoff_choice.py MUSER RECORD MODEL GBIT_PER_S LENGTH,LENGTH,...     as root

Three servers with one thread each and producers with all of them, over a wire between two network namespaces. One server
always asks the producer, one has none: they say how long either way takes. The third chooses, by what it measures. A choice
is right if it is the faster way, or at most a tenth slower.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

import handoff_netns as netns
import handoff_world as world

TOLERANCE = 1.1


def inside(muser, model, gbit, lengths):
    lengths = [int(length) for length in lengths.split(",")]
    # From both ends to the middle, twice.
    lessons = [length for pair in zip(lengths, reversed(lengths)) for length in pair]
    choose = random.Random(9)
    prompt = lambda length: [choose.randrange(3, 500) for _ in range(length)]
    flags = ["-m", model, "-ctk", "f16", "-ctv", "f16"]
    slow = [*flags, "-t", "1", "--cache-ram", "0"]
    trials = []
    # What one way keeps must not help the other: nobody keeps prefixes, the producer neither.
    with netns.wire("veth", float(gbit), None) as (address, prefix), world.cluster(muser) as (producer, decoder), \
            world.cluster(muser) as (producer_too, decoder_too), \
            world.produce(muser, producer, [*flags, "--cache-ram", "0"], f"{address}:0", prefix) as far, \
            world.produce(muser, producer_too, [*flags, "--cache-ram", "0"], f"{address}:0", prefix) as far_too, \
            world.serve(muser, slow) as alone, \
            world.serve(muser, [*slow, *world.with_producer(decoder, far.address)]) as always, \
            world.serve(muser, [*slow, "--cluster", decoder_too, "--producer", far_too.address]) as choosing:
        here, there, either = (world.Client(server) for server in (alone, always, choosing))
        for length in lessons:
            netns.timed(either, prompt(length))
        for client in (here, there):
            netns.timed(client, prompt(300))
        for length in lengths:
            tokens = prompt(length)
            local_ms, expected = netns.timed(here, tokens)
            producer_ms, by_producer = netns.timed(there, tokens)
            chosen_ms, chosen = netns.timed(either, tokens)
            source = chosen["timings"]["kv_source"]
            times = {"local": local_ms, "producer": producer_ms}
            trials.append({
                "prompt_tokens": length, "local_ms": local_ms, "producer_ms": producer_ms, "chosen": source,
                "chosen_ms": chosen_ms, "choice": chosen["timings"].get("kv_choice"),
                "right": times[source] <= TOLERANCE * min(times.values()),
                "same_bits": netns.same(by_producer, expected) and netns.same(chosen, expected),
            })
            print({name: value for name, value in trials[-1].items() if name != "choice"}, file=sys.stderr)
    return trials


def main():
    if sys.argv[1] == "--inside":
        print(json.dumps(inside(*sys.argv[2:])))
        return
    muser, record, model, gbit, lengths = sys.argv[1:]
    if reason := netns.why_not():
        raise SystemExit(f"no handoffs between namespaces: {reason}")
    with netns.namespaces():
        command = ["ip", "netns", "exec", netns.DECODER, sys.executable, __file__, "--inside"]
        shown = subprocess.run([*command, os.path.abspath(muser), os.path.abspath(model), gbit, lengths], check=True,
                               stdout=subprocess.PIPE, text=True)
    trials = json.loads(shown.stdout)
    right = sum(trial["right"] for trial in trials) / len(trials)
    same = all(trial["same_bits"] for trial in trials)
    world.record(
        record,
        f"who is chosen to compute prompts of many lengths, and who was faster, over {gbit} Gbit/s between two network namespaces",
        f"scripts/handoff_choice.py target/release/muser {pathlib.Path(record).name} {pathlib.Path(model).name} {gbit} {lengths}",
        note="all processes share the machine and its processors; servers compute with one thread, the producer with all. A choice "
        "is right if that way takes at most a tenth longer than the other",
        share_of_right_choices=right, same_bits=same, trials=trials,
    )
    print(f"{right:.0%} of the choices are right")
    sys.exit(0 if right >= 0.95 and same else 1)


if __name__ == "__main__":
    main()
