#!/usr/bin/env python3
"""Answers prompts of many lengths here and with a producer, and records times, bytes and whether the bits are the same.

    handoff_bits.py [--company] MUSER RECORD MODEL=LENGTH,LENGTH,... [MODEL=...]

MODEL is a file, or `shipped`. Without --company each trial is `muser demo`: the producer is a process of its own, reached
over loopback TLS. With it, a server that has a producer and one that has none answer the same prompt over HTTP, while two
other requests are always under way at the first, and with it at the producer; compared are text, tokens and the
100 largest probabilities at every token (`muser demo` compares those of the whole vocabulary).
"""

import pathlib
import random
import subprocess
import sys
import threading

import handoff_world as world

OTHERS = 2
PROBABILITIES = 100


def demo(muser, model, kv, length):
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


class Others:
    """Requests that are always under way, with prompts that go to the producer, too."""

    def __init__(self, server, vocabulary):
        self.stopped, self.ended = False, 0
        self.threads = [threading.Thread(target=self._ask, args=(server, vocabulary, seed)) for seed in range(OTHERS)]
        for thread in self.threads:
            thread.start()

    def _ask(self, server, vocabulary, seed):
        client, choose = world.Client(server), random.Random(1000 + seed)
        while not self.stopped:
            prompt = [choose.randrange(3, min(vocabulary, 40_000)) for _ in range(choose.randrange(100, 300))]
            client.complete(prompt, 24)
            self.ended += 1

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        return self.ended


def in_company(muser, model, kv, lengths):
    of_model = [] if model == "shipped" else ["-m", model]
    flags = [*of_model, "-ctk", kv, "-ctv", kv]
    with world.cluster(muser) as (producer, decoder), world.produce(muser, producer, [*flags, "--parallel", "4"]) as far, \
            world.serve(muser, flags) as alone, world.serve(muser, [*flags, *world.with_producer(decoder, far.address)]) as near:
        here, there = world.Client(alone), world.Client(near)
        vocabulary = here.vocabulary()
        choose = random.Random(7)
        for length in lengths:
            prompt = [choose.randrange(3, min(vocabulary, 40_000)) for _ in range(length)]
            others = Others(near, vocabulary)
            remote = there.complete(prompt, 4, n_probs=PROBABILITIES)
            ended = others.stop()
            local = here.complete(prompt, 4, n_probs=PROBABILITIES)
            times = remote["timings"]
            same = all(local[field] == remote[field] for field in ("content", "tokens", "completion_probabilities"))
            compared = sum(len(token["top_logprobs"]) for token in local["completion_probabilities"])
            yield {
                "model": pathlib.Path(model).name,
                "kv": kv,
                "prompt_tokens": length,
                "same_bits": same and times["kv_source"] == "producer",
                "kv_source": times["kv_source"],
                "probabilities_compared": compared,
                "other_requests_under_way": OTHERS,
                "other_requests_ended": ended,
                "prompt_is_held_brought_and_computed": times["cache_n"] + times.get("kv_brought_n", 0) + times["prompt_n"] == length,
                "handoff_ms": times.get("kv_ms"),
                "pages": times.get("kv_pages"),
                "payload_bytes": times.get("kv_payload_bytes"),
            }


def main():
    args = sys.argv[1:]
    company = args[:1] == ["--company"]
    muser, record, *models = args[company:]
    trials = []
    for model, lengths in (entry.split("=") for entry in models):
        lengths = [int(length) for length in lengths.split(",")]
        for kv in ("q8", "f16"):
            for trial in in_company(muser, model, kv, lengths) if company else (demo(muser, model, kv, n) for n in lengths):
                trials.append(trial)
                print(trial, flush=True)
    wrong = [trial for trial in trials if not trial["same_bits"]]
    shown = " ".join(f"{pathlib.Path(model).name}={lengths}" for model, lengths in (e.split("=") for e in models))
    flag = "--company " if company else ""
    world.record(
        record,
        "a prompt answered here and with a producer on the same machine: bits, times, bytes",
        f"scripts/handoff_bits.py {flag}target/release/muser {pathlib.Path(record).name} {shown}",
        note="producer and decoder share the machine and its processors, so that the times show the cost of the way, not a gain",
        trials=trials,
        different=wrong,
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
