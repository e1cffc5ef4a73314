#!/usr/bin/env python3
"""Very many small handoffs between two processes: whether sockets, descriptors and memory stay bounded.

    handoff_many.py MUSER RECORD [COUNT] [CLIENTS]

A server has every prompt computed by a producer. Clients keep their connections, so that sockets of the system that are not
theirs are those of handoffs. Every fiftieth answer is compared with that of a server without a producer.
"""

import pathlib
import random
import subprocess
import sys
import threading
import time

import handoff_world as world

PROMPT_TOKENS = 66


def sockets():
    """TCP sockets of this machine by state."""
    shown = subprocess.run(["ss", "-Htan"], capture_output=True, text=True)
    states = [line.split()[0] for line in shown.stdout.splitlines()]
    return {state: states.count(state) for state in sorted(set(states))}


def main():
    muser, record, *numbers = sys.argv[1:]
    count, clients = [*(int(number) for number in numbers), *(30_000, 3)[len(numbers):]]
    outcomes, samples, lock = {"producer": 0, "local": 0}, [], threading.Lock()
    wrong, reasons, asked = [], {}, [0]
    with world.cluster(muser) as (producer, decoder), \
            world.produce(muser, producer, ["--cache-ram", "64", "--kv-memory", "256", "--parallel", "4", "-c", "256"]) as far, \
            world.serve(muser, ["-c", "256"]) as alone, \
            world.serve(muser, ["-c", "256", "--parallel", "4", *world.with_producer(decoder, far.address)]) as near:

        def sample():
            samples.append({"handoffs": outcomes["producer"], "sockets_of_the_machine": sockets(),
                            "producer": far.descriptors() | far.resident_kib(),
                            "decoder": near.descriptors() | near.resident_kib()})
            print(samples[-1], flush=True)

        def ask(seed):
            client, check, choose = world.Client(near), world.Client(alone), random.Random(seed)
            while True:
                with lock:
                    if asked[0] == count:
                        return
                    asked[0] += 1
                    number = asked[0]
                prompt = [choose.randrange(3, 4000) for _ in range(PROMPT_TOKENS)]
                answer = client.complete(prompt, 2, n_probs=5)
                with lock:
                    times = answer["timings"]
                    outcomes[times["kv_source"]] += 1
                    if "kv_fallback" in times:
                        reason = times["kv_fallback"].split(": ", 1)[-1]
                        reasons[reason] = reasons.get(reason, 0) + 1
                    if number % (count // 10) == 0:
                        sample()
                if number % 50 == 0:
                    expected = check.complete(prompt, 2, n_probs=5)
                    if any(expected[field] != answer[field] for field in ("tokens", "completion_probabilities")):
                        wrong.append(prompt)

        world.Client(near).complete([5] * PROMPT_TOKENS, 2)
        sample()
        began = time.monotonic()
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
    first, rest = samples[0], samples[1:]
    bounded = all(end[kind] <= first[name][kind] + 16 for each in rest for name, end in each.items()
                  if name in ("producer", "decoder") for kind in ("descriptors", "sockets"))
    world.record(
        record,
        "very many small handoffs between two processes of one machine: sockets, descriptors, memory",
        f"scripts/handoff_many.py target/release/muser {pathlib.Path(record).name} {count} {clients}",
        prompt_tokens=PROMPT_TOKENS, requests=count, clients=clients, seconds=round(seconds, 1), kv_sources=outcomes,
        fallback_reasons=reasons, compared=count // 50, wrong_answers=len(wrong), sockets_bounded=bounded, samples=samples,
    )
    sys.exit(0 if bounded and not wrong else 1)


if __name__ == "__main__":
    main()
