#!/usr/bin/env python3
"""Handoffs between two network namespaces, over wires of known rate and delay: times, rates, and how well they overlap.

    handoff_netns.py MUSER RECORD MODEL TOKENS [KIND]     as root; MODEL is a file, or `shipped`; KIND of the wires, or all
    handoff_netns.py --short MUSER                 one wire of 1 Gbit/s and one prompt of the shipped model, in seconds
    handoff_netns.py --check                       says why it cannot run here, and fails, if it cannot

Three kinds of wire: the loopback interface; a pair of veth interfaces, each with a token bucket filter of `tc`; and, as a
kernel may have no way to delay packets, a pair of TUN interfaces between which this script carries every packet, when its
time has come and no faster than the rate. Those packets have up to 60,000 bytes, so that a script can carry enough of them.

The decoder keeps no prefixes, so that every prompt travels whole each time; the producer keeps them. So the first answer to
a prompt shows how computing and sending overlap, and the next ones, which nobody computes, what the wire carries.
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import pathlib
import random
import re
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time

import handoff_world as world

PRODUCER, DECODER = "muser-trial-p", "muser-trial-d"
VETH, TUN = "10.98.1", "10.98.2"
# Prompts that nobody has computed before, and answers to one that the producer has.
FIRSTS, REPEATS = 3, 5
# Least, usual and largest bytes of a TCP buffer. A round trip of 20 ms at 10 Gbit/s holds 25 MB.
LARGE_BUFFERS = "4096 262144 134217728"
# Kind, Gbit/s, round trip in ms, and Gbit/s that the producer is to keep.
WIRES = [
    ("loopback", None, None, None),
    ("loopback", None, None, 3.0),
    ("veth", 0.1, None, None),
    ("veth", 1, None, None),
    ("veth", 1, None, 0.9),
    ("veth", 10, None, None),
    ("veth", 10, None, 3.3),
    ("tun", 1, 0.2, 0.9),
    ("tun", 1, 2, 0.9),
    ("tun", 1, 20, 0.9),
    ("tun", 10, 0.2, None),
    ("tun", 10, 2, None),
    ("tun", 10, 20, None),
    ("tun, large buffers", 10, 20, None),
]


def run(*command):
    subprocess.run(command, check=True)


def why_not():
    if os.geteuid() != 0:
        return "it is for root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    tried = subprocess.run(["ip", "netns", "add", DECODER], capture_output=True, text=True)
    if tried.returncode != 0:
        return tried.stderr.strip()
    run("ip", "netns", "del", DECODER)
    return None


@contextlib.contextmanager
def namespaces():
    """Two namespaces with a pair of veth interfaces between them."""
    for name in (PRODUCER, DECODER):
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    try:
        for name in (PRODUCER, DECODER):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", PRODUCER, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", DECODER)
        for name, host in ((PRODUCER, 1), (DECODER, 2)):
            run("ip", "-n", name, "addr", "add", f"{VETH}.{host}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
        yield
    finally:
        for name in (PRODUCER, DECODER):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def shape(gbit):
    """Gives both ends of the veth pair a rate, with room for 10 ms of it."""
    burst = max(int(gbit * 1e9 / 8 * 0.001), 200_000)
    for name in (PRODUCER, DECODER):
        run("tc", "-n", name, "qdisc", "replace", "dev", "wire", "root", "tbf", "rate", f"{gbit}gbit",
            "burst", str(burst), "latency", "10ms")


def open_tun(namespace):
    """A TUN interface in a namespace, which this process enters."""
    with open(f"/var/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise SystemExit(f"no way into {namespace}: {os.strerror(ctypes.get_errno())}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    tun_without_header = 0x1001
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"late", tun_without_header))
    return tun


def carry(gbit, round_trip_ms):
    """Carries packets between two TUN interfaces until it is ended."""
    ends = [open_tun(PRODUCER), open_tun(DECODER)]
    print("ready", flush=True)
    seconds_per_byte, delay = 8e-9 / gbit, round_trip_ms / 2e3
    free_from, queue, number = [0.0, 0.0], [], 0
    while True:
        wait = max(queue[0][0] - time.monotonic(), 0) if queue else None
        readable, _, _ = select.select(ends, [], [], wait)
        now = time.monotonic()
        for way, end in enumerate(ends):
            for _ in range(32 if end in readable else 0):
                try:
                    packet = os.read(end, 65536)
                except BlockingIOError:
                    break
                # As on a wire: one packet after the other, each on its way for the same time.
                free_from[way] = max(free_from[way], now) + len(packet) * seconds_per_byte
                number += 1
                heapq.heappush(queue, (free_from[way] + delay, number, 1 - way, packet))
        while queue and queue[0][0] <= time.monotonic():
            _, _, way, packet = heapq.heappop(queue)
            # An interface that is not up yet, or has no room, takes none: as a wire loses them.
            with contextlib.suppress(OSError):
                os.write(ends[way], packet)


@contextlib.contextmanager
def wire(kind, gbit, round_trip_ms):
    """A wire; the producer's address on it, and whether the producer is in a namespace of its own."""
    if kind == "loopback":
        yield "127.0.0.1", ()
        return
    away = ("ip", "netns", "exec", PRODUCER)
    if kind == "veth":
        shape(gbit)
        yield f"{VETH}.1", away
        return
    if kind == "tun, large buffers":
        for name in (PRODUCER, DECODER):
            for buffers in ("tcp_rmem", "tcp_wmem"):
                run("ip", "netns", "exec", name, "sh", "-c", f"echo {LARGE_BUFFERS} > /proc/sys/net/ipv4/{buffers}")
    command = [sys.executable, __file__, "--carry", str(gbit), str(round_trip_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as carrier:
        try:
            if carrier.stdout.readline() != "ready\n":
                raise SystemExit("nobody carries packets")
            for name, host in ((PRODUCER, 1), (DECODER, 2)):
                run("ip", "-n", name, "addr", "add", f"{TUN}.{host}/24", "dev", "late")
                run("ip", "-n", name, "link", "set", "late", "mtu", "60000", "up")
            yield f"{TUN}.1", away
        finally:
            carrier.kill()


def round_trip_ms(address):
    """The least of ten times that it takes to open a connection."""
    host, port = address.split(":")
    times = []
    for _ in range(10):
        began = time.monotonic()
        with socket.create_connection((host, int(port))):
            times.append((time.monotonic() - began) * 1e3)
    return min(times)


def timed(client, prompt):
    """The time to the first token, and the answer, which is that token with its probabilities."""
    began = time.monotonic()
    answer = client.complete(prompt, 1, n_probs=20)
    return (time.monotonic() - began) * 1e3, answer


def same(one, other):
    return all(one[field] == other[field] for field in ("content", "tokens", "completion_probabilities"))


def sent(line):
    """What a producer says of a handoff: rates, and the part of the pace."""
    def number(pattern):
        found = re.search(pattern, line)
        return float(found.group(1)) if found else None
    return {"busy_gbit_per_s": number(r"([\d.]+) Gbit/s \(send-busy\)"), "wall_gbit_per_s": number(r"([\d.]+) Gbit/s \(wall\)"),
            "percent_of_pace": number(r"(\d+) % of it")}


def trial(muser, model, prompts, alone, conditions):
    """A first answer to each prompt, and that to the last one several times more, over one wire."""
    here_ms, answers = alone
    kind, gbit, delay, pace = conditions
    flags = [*model, "-ctk", "f16", "-ctv", "f16"]
    paced = ["--pace", str(pace)] if pace else []
    with wire(kind, gbit, delay) as (address, prefix), world.cluster(muser) as (producer, decoder), \
            world.produce(muser, producer, [*flags, *paced, "--compress", "never"], f"{address}:0", prefix) as far, \
            world.serve(muser, [*flags, "--cache-ram", "0", *world.with_producer(decoder, far.address)]) as near:
        trip, client = round_trip_ms(far.address), world.Client(near)
        # A lane is made, and both engines have run.
        timed(client, prompts[0])
        firsts, repeats, right = [], [], True
        for prompt, expected in zip(prompts[1:], answers):
            first_ms, first = timed(client, prompt)
            times = first["timings"]
            right &= same(first, expected) and times["kv_source"] == "producer"
            firsts.append({"first_token_ms": first_ms, "producer_compute_ms": times["kv_compute_ms"]})
        for _ in range(REPEATS):
            heard = len(far.lines)
            again_ms, again = timed(client, prompts[-1])
            right &= same(again, answers[-1]) and again["timings"]["kv_source"] == "producer"
            line = far.wait_for(r"handoff to .*", heard, 20).group(0)
            bits = again["timings"]["kv_payload_bytes"] * 8
            repeats.append({"first_token_ms": again_ms, "handoff_ms": again["timings"]["kv_ms"],
                            "handoff_gbit_per_s": bits / again["timings"]["kv_ms"] / 1e6, **sent(line)})
        payload = times["kv_payload_bytes"]
    limits = [rate for rate in (gbit, pace) if rate]
    wire_ms = payload * 8e-6 / min(limits) if limits else None
    # The kernel counts in ticks: of a short handoff it tells no rate.
    told = lambda name: [repeat[name] for repeat in repeats if repeat[name] is not None]
    middle = lambda name: statistics.median(told(name)) if told(name) else None
    for first in firsts:
        bound_ms = max(first["producer_compute_ms"], wire_ms or 0)
        first["over_longer_of_compute_and_wire"] = first["first_token_ms"] / bound_ms
    result = {
        "wire": kind, "wire_gbit_per_s": gbit, "round_trip_ms": delay, "round_trip_measured_ms": trip, "pace_gbit_per_s": pace,
        "prompt_tokens": len(prompts[-1]), "payload_bytes": payload, "same_bits": right, "first_token_here_ms": here_ms, "wire_ms": wire_ms,
        "first": firsts, "first_token_ms": statistics.median(first["first_token_ms"] for first in firsts),
        "first_token_over_longer_of_compute_and_wire":
            statistics.median(first["over_longer_of_compute_and_wire"] for first in firsts),
        "repeated": repeats, "repeated_busy_gbit_per_s": middle("busy_gbit_per_s"),
        "repeated_handoff_gbit_per_s": middle("handoff_gbit_per_s"),
        "repeated_percent_of_pace": middle("percent_of_pace") if pace else None,
    }
    print({name: value for name, value in result.items() if name not in ("first", "repeated")}, file=sys.stderr)
    return result


def inside(muser, model, tokens, wires):
    """All trials, from the decoder's namespace."""
    choose = random.Random(3)
    of_model = [] if model == "shipped" else ["-m", model]
    prompts = [[choose.randrange(3, 500) for _ in range(length)] for length in (70, *[tokens] * FIRSTS)]
    with world.serve(muser, [*of_model, "-ctk", "f16", "-ctv", "f16", "--cache-ram", "0"]) as server:
        client = world.Client(server)
        timed(client, prompts[0])
        alone = [timed(client, prompt) for prompt in prompts[1:]]
    alone = statistics.median(ms for ms, _ in alone), [answer for _, answer in alone]
    return [trial(muser, of_model, prompts, alone, conditions) for conditions in wires]


def checks(trials):
    """What has to hold, and whether it does."""
    found = [("the bits are those of an answer without a producer", all(trial["same_bits"] for trial in trials))]
    for trial in trials:
        name = f'{trial["wire"]}, {trial["wire_gbit_per_s"]} Gbit/s, {trial["round_trip_ms"]} ms, pace {trial["pace_gbit_per_s"]}'
        ratio = trial["first_token_over_longer_of_compute_and_wire"]
        found.append((f"{name}: first token within 1.15 of the longer of computing and wire: {ratio:.3f}", ratio <= 1.15))
        if trial["pace_gbit_per_s"]:
            percent = trial["repeated_percent_of_pace"]
            found.append((f"{name}: at least 90 % of the pace: {percent} %", percent is not None and percent >= 90))
        elif trial["wire_gbit_per_s"] == 10 and (trial["round_trip_ms"] or 0) < 20 or "large" in trial["wire"]:
            rate = trial["repeated_busy_gbit_per_s"]
            found.append((f"{name}: more than 3.0 Gbit/s while sending: {rate}", rate is not None and rate > 3.0))
    return [{"check": name, "holds": bool(holds)} for name, holds in found]


def main():
    args = sys.argv[1:]
    if args[:1] == ["--carry"]:
        return carry(float(args[1]), float(args[2]))
    if args[:1] == ["--inside"]:
        muser, model, tokens, wires = json.loads(args[1])
        print(json.dumps(inside(muser, model, tokens, wires)))
        return None
    if reason := why_not():
        raise SystemExit(f"no handoffs between namespaces: {reason}")
    if args == ["--check"]:
        return None
    short = args[:1] == ["--short"]
    muser, model, tokens = (args[1], "shipped", 1000) if short else (args[0], args[2], int(args[3]))
    kind = args[4] if len(args) > 4 else ""
    wires = [("veth", 1, None, 0.5)] if short else [wire for wire in WIRES if kind in ("", wire[0])]
    what = json.dumps([os.path.abspath(muser), model if model == "shipped" else os.path.abspath(model), tokens, wires])
    with namespaces():
        command = ["ip", "netns", "exec", DECODER, sys.executable, __file__, "--inside", what]
        shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    trials = json.loads(shown)
    if short:
        # Speed is not judged where other things run, but a wire carries no more than it can.
        fine = all(trial["same_bits"] and trial["repeated_handoff_gbit_per_s"] < 1.05 for trial in trials)
        raise SystemExit(0 if fine else 1)
    found = checks(trials)
    world.record(
        args[1],
        "handoffs between two network namespaces, over wires of known rate and delay",
        f"scripts/handoff_netns.py target/release/muser {pathlib.Path(args[1]).name} {pathlib.Path(model).name} {tokens} {kind}".rstrip(),
        note="producer, decoder, and whoever carries packets share the machine and its processors. first_token_here_ms is that "
        "of a server without a producer; it and those of first answers are medians; producer_compute_ms is what the producer says of the same prompt, while "
        "the decoder takes what is sent on the same processors; wire_ms is the payload at the lower of the "
        "wire's rate and the pace. A tun wire is a script that carries packets of up to 60,000 bytes. "
        "Large buffers are those of net.ipv4.tcp_rmem and tcp_wmem; with the usual ones 20 ms at 10 Gbit/s is not judged",
        checks=found, trials=trials,
    )
    for each in found:
        print("holds " if each["holds"] else "FAILS ", each["check"])
    raise SystemExit(0 if all(each["holds"] for each in found) else 1)


if __name__ == "__main__":
    main()
