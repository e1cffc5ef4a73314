#!/usr/bin/env python3
"""Measures when a short prompt has its first token while a long one is computed, with two builds, and writes a record.

usage: first_token_beside.py RECORD.json ROUNDS MODEL.gguf COMMIT=MUSER...
Each MUSER is the program as of COMMIT. A server with two threads streams the answer to a long prompt; 150 ms after it a prompt
of 20 tokens comes. Random ids, so that nothing is reused. Needs Linux."""
import datetime
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

SHORT, LONG, THREADS = 20, (1000, 4000), 2
# Ids that every vocabulary has, and that are no control tokens.
IDS = range(1000, 4000)


def cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line.split(":", 1) for line in file if ":" in line]
    fields = [(name.strip(), value.strip()) for name, value in lines]
    return {"model": dict(fields)["model name"], "cpus": sum(name == "processor" for name, _ in fields)}


def prompt(rng, count):
    return [rng.choice(IDS) for _ in range(count)]


def first_token_ms(address, ids):
    """From the request to the first event with text or the end."""
    body = json.dumps({"prompt": ids, "n_predict": 1, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/completion", body), timeout=3600) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                return round((time.monotonic() - began) * 1e3, 1)
    sys.exit("a stream without events")


def beside(address, rng, count):
    """First tokens of a long prompt and of a short one that comes 150 ms after it."""
    ids, found = prompt(rng, count), {}
    long = threading.Thread(target=lambda: found.update(long_ms=first_token_ms(address, ids)))
    long.start()
    time.sleep(0.15)
    found["short_ms"] = first_token_ms(address, prompt(rng, SHORT))
    long.join()
    return found


def measure(muser, model, rounds):
    command = [muser, "serve", "-m", model, "--port", "0", "-c", "8192", "-t", str(THREADS)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = next(found[1] for line in server.stderr if (found := re.match(r"muser: listening on (http\S*)", line)))
        threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
        wait_until_ready(address)
        rng = random.Random(8)
        first_token_ms(address, prompt(rng, SHORT))
        return {
            "short_alone_ms": [first_token_ms(address, prompt(rng, SHORT)) for _ in range(2 * rounds)],
            "long_alone_ms": {n: [first_token_ms(address, prompt(rng, n)) for _ in range(rounds)] for n in LONG},
            "beside": {n: [beside(address, rng, n) for _ in range(rounds)] for n in LONG},
        }
    finally:
        server.terminate()
        server.wait()


def wait_until_ready(address):
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health")
            return
        except urllib.error.HTTPError:
            time.sleep(0.1)
    sys.exit("the model is not loaded after a minute")


def main():
    if len(sys.argv) < 5 or not all("=" in build for build in sys.argv[4:]):
        sys.exit(__doc__)
    record, rounds, model = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    builds = [build.split("=", 1) for build in sys.argv[4:]]
    names = [f"{commit}=MUSER" for commit, _ in builds]
    text = {
        "what": f"first token of {SHORT} tokens that come 150 ms after a long prompt, and of that, by build",
        "command": " ".join(["scripts/first_token_beside.py", record.name, str(rounds), pathlib.Path(model).name, *names]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": builds[-1][0],
        "machine": cpu(),
        "threads": THREADS,
        "load_before": os.getloadavg(),
        "builds": {commit: measure(muser, model, rounds) for commit, muser in builds},
        "load_after": os.getloadavg(),
    }
    record.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
