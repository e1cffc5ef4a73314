#!/usr/bin/env python3
"""Runs the server's load program for a while and writes what came of it as a record.

usage: server_load.py SECONDS RECORD.json [SEED]
Many clients ask a server in the same process, some leave before their answer is there, and every answer that is read to its
end is compared with the one that the executor gives alone: see crates/server/tests/load. Fails if an answer was wrong or
something was left behind."""
import datetime
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = ["cargo", "run", "--release", "-q", "-p", "muser-server", "--example", "load", "--"]


def output(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line.split(":", 1) for line in file if ":" in line]
    fields = [(name.strip(), value.strip()) for name, value in lines]
    return {"model": dict(fields)["model name"], "cpus": sum(name == "processor" for name, _ in fields)}


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    seconds, record, seed = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    circumstances = {
        "what": "clients that come and go: every answer compared with that of the executor alone",
        "command": " ".join(["scripts/server_load.py", seconds, record.name, *seed]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": output("git", "rev-parse", "HEAD"),
        "tree_clean": not output("git", "status", "--porcelain", "--untracked-files=no"),
        "machine": cpu(),
    }
    done = subprocess.run([*CARGO, seconds, *seed], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        sys.exit(done.returncode or 1)
    text = json.dumps(circumstances | json.loads(done.stdout), indent=1)
    record.write_text(text + "\n", encoding="utf-8")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
