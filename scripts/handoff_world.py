"""Producers and servers of one cluster on this machine, for the scripts that try handoffs out. Not a program."""

import contextlib
import datetime
import http.client
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Running:
    """A command of muser that has said where it listens. It is ended when the block ends."""

    def __init__(self, command, pattern, prefix=()):
        self.lines = []
        self.process = subprocess.Popen([*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()
        self.address = self.wait_for(pattern).group(1)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern, start=0, seconds=120):
        """The first match among the lines from `start` on, which must come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.lines[start:]:
                if found := re.search(pattern, line):
                    return found
            if self.process.poll() is not None:
                raise SystemExit(f"{self.process.args} ended: {self.lines}")
            time.sleep(0.002)
        raise SystemExit(f"{self.process.args} never said {pattern}: {self.lines[-20:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def pid(self):
        """The process itself, behind whatever starts it."""
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else pid

    def descriptors(self):
        """Open descriptors, and how many of them are sockets."""
        folder = f"/proc/{self.pid()}/fd"
        links = []
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"{folder}/{name}"))
        return {"descriptors": len(links), "sockets": sum(link.startswith("socket:") for link in links)}

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.pid()}/status").read_text()
        return {name: int(re.search(rf"{field}:\s+(\d+)", status).group(1))
                for name, field in [("resident_kib", "VmRSS"), ("peak_kib", "VmHWM")]}


@contextlib.contextmanager
def cluster(muser):
    """Folders of a producer and a decoder."""
    with tempfile.TemporaryDirectory() as folder:
        decoder, producer = f"{folder}/decoder", f"{folder}/producer"
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([muser, "cluster", "begin", decoder, "--name", "trial", "--node", "decoder"], **quiet)
        subprocess.run([muser, "cluster", "grant", decoder, "producer", "--roles", "producer", "--out", producer], **quiet)
        yield producer, decoder


def produce(muser, folder, flags, listen="127.0.0.1:0", prefix=()):
    command = [muser, "produce", "--cluster", folder, "--listen", listen, *flags]
    return Running(command, r"producing on (\S+)", prefix)


def serve(muser, flags):
    return Running([muser, "serve", "--port", "0", *flags], r"listening on http://(\S+)")


def with_producer(folder, address, minimum=1):
    """Flags of a server that has every prompt of so many tokens computed elsewhere."""
    return ["--cluster", folder, "--producer", address, "--producer-min-tokens", str(minimum), "--prefill", "producer"]


class Client:
    """Asks one server over one connection."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection(server.address, timeout=1200)

    def get(self, path):
        self.connection.request("GET", path)
        return self._answer()

    def complete(self, prompt, tokens, **more):
        body = {"prompt": prompt, "n_predict": tokens, "seed": 1, "return_tokens": True, **more}
        self.connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        return self._answer()

    def _answer(self):
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {text[:500]}")
        return json.loads(text)

    def vocabulary(self):
        return self.get("/v1/models")["data"][0]["meta"]["n_vocab"]


def output(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return {"model": models[0] if models else "unknown", "cpus": os.cpu_count(), "kernel": os.uname().release}


def record(path, what, command, **content):
    """Writes a record with its circumstances."""
    text = json.dumps({
        "what": what,
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": output("git", "rev-parse", "HEAD"),
        "tree_clean": output("git", "status", "--porcelain", "--untracked-files=no") == "",
        "machine": machine(),
        **content,
    }, indent=1)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
