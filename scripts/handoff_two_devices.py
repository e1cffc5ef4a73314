#!/usr/bin/env python3
"""First tokens of long prompts: a producer on a GPU and a decoder on the CPU of one machine, over TLS on loopback.

    handoff_two_devices.py MUSER MODEL.gguf COMMIT RECORD [LENGTH...]

For each length: one prompt that is not counted, five different ones, and again the last one (warm: the decoder holds all
of it) and the last one with its last quarter changed (delta). With --audit the decoder recomputes a range of tokens of every
answer itself and compares bytes; that is a server of its own, asked once for each length, so that no counted answer waits
for it. The shortest prompt is also answered by a decoder without a producer, and the 100 largest probabilities at each of four
tokens must have the same bits (`muser demo` compares those of the whole vocabulary).
"""

import json
import random
import statistics
import sys
import time

import handoff_world as world

LENGTHS = [2048, 8192, 32768, 65536, 131008]
COUNTED = 5
PROBABILITIES = 100


def prompt(length, seed, vocabulary):
    choose = random.Random(seed)
    return [choose.randrange(3, vocabulary) for _ in range(length)]


def ask(client, tokens):
    start = time.monotonic()
    answer = client.complete(tokens, 1)
    timings = answer["timings"]
    kept = {name: timings[name] for name in sorted(timings) if name.startswith("kv_") and name != "kv_choice"}
    return {"first_token_s": round(time.monotonic() - start, 3), "cache_n": timings.get("cache_n"), **kept}


def row_of(length, counted, warm, delta):
    seconds = [answer["first_token_s"] for answer in counted]
    middle = sorted(counted, key=lambda answer: answer["first_token_s"])[len(counted) // 2]
    return {"prompt_tokens": length, "first_token_s": statistics.median(seconds), "samples_s": seconds,
            "median_answer": middle, "warm": warm, "delta": delta}


def measure(client, lengths, keep):
    vocabulary = client.vocabulary()
    for length in lengths:
        ask(client, prompt(length, 1, vocabulary))
        prompts = [prompt(length, seed, vocabulary) for seed in range(2, 2 + COUNTED)]
        counted = [ask(client, tokens) for tokens in prompts]
        changed = prompts[-1][:length * 3 // 4] + prompt(length - length * 3 // 4, 100, vocabulary)
        keep(row_of(length, counted, ask(client, prompts[-1]), ask(client, changed)))


def main():
    muser, model, commit, record, *lengths = sys.argv[1:]
    lengths = [int(length) for length in lengths] or LENGTHS
    table, audits, same = [], [], None

    def write():
        world.record(record, "first token of a prompt computed on a GPU and decoded on the CPU beside it, TLS over loopback, q8 KV",
                     f"scripts/handoff_two_devices.py muser MODEL {commit} RECORD", commit=commit, prompts=table,
                     audits=audits, same_bits_as_alone=same)

    def keep(row):
        table.append(row)
        print(row["prompt_tokens"], row["first_token_s"], json.dumps(row["median_answer"]), flush=True)
        write()

    files = ["-m", model]
    with world.cluster(muser) as (producer, decoder), \
            world.produce(muser, producer, [*files, "--device", "cuda", "--parallel", "1"]) as far:
        flags = [*files, "--device", "cpu", "--parallel", "1", *world.with_producer(decoder, far.address)]
        with world.serve(muser, flags) as near:
            client = world.Client(near)
            vocabulary = client.vocabulary()
            measure(client, lengths, keep)
            first = prompt(lengths[0], 7, vocabulary)
            remote = client.complete(first, 4, n_probs=PROBABILITIES)
        with world.serve(muser, [*flags, "--audit", "1", "--audit-tokens", "128", "--kv-memory", "4096"]) as near:
            client = world.Client(near)
            for length in lengths:
                audits.append({"prompt_tokens": length, **ask(client, prompt(length, 8, vocabulary))})
                print(length, json.dumps(audits[-1].get("kv_audit")), flush=True)
                write()
    with world.serve(muser, [*files, "--device", "cpu", "--parallel", "1"]) as alone:
        local = world.Client(alone).complete(first, 4, n_probs=PROBABILITIES)
    names = ("content", "tokens", "completion_probabilities")
    same = all(remote[name] == local[name] for name in names)
    write()
    print("same bits as alone:", same)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
