#!/usr/bin/env python3
"""Records what llama.cpp makes of glimmer-mini: distance to the float64 reference and perplexity, per file and KV type.

usage: llama_truth.py DIR MODELS PROMPTS.json VAL.txt OUT.json [--variants native avx2] [--keep WORK]
DIR: where build_llama_cpp.sh built. MODELS: holds glimmer-mini-{F16,Q8_0,Q4_K_M}.gguf and ref-{...}.json (and .f32).
Also writes WORK/prompts-ids.txt and WORK/val-ids.txt, so that muser is asked for exactly the same ids.

Perplexity: VAL.txt is tokenised as one text by llama.cpp (no BOS, control tokens as text); its first 64 windows of 512 ids
are evaluated each from an empty cache; the tokens at window positions 256..511 are scored (see perplexity.py)."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FILES = ("F16", "Q8_0", "Q4_K_M")
# llama.cpp refuses a quantised V cache without flash attention; f32 without it is its most exact setting.
KV = (("f32", 0), ("f16", 0), ("f16", 1), ("q8_0", 1))
WINDOW, WINDOWS, SCORED_FROM, THREADS = 512, 64, 256, 2


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE).stdout


def python(script, *args):
    return json.loads(run(sys.executable, HERE / script, *args, "--json"))


def write_windows(probe, model, text_path, out):
    text = pathlib.Path(text_path).read_bytes()
    asked = b"%d\n%b" % (len(text), text)
    ids = subprocess.run([str(probe), "tokenize", str(model), "0"], input=asked, stdout=subprocess.PIPE, check=True).stdout.split()
    windows = [ids[i : i + WINDOW] for i in range(0, WINDOW * WINDOWS, WINDOW)]
    assert len(windows[-1]) == WINDOW, "the text is too short"
    out.write_bytes(b"".join(b" ".join(w) + b"\n" for w in windows))


def rounded(value):
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def measure(probe, args, work, quant, kv, flash):
    model = args.models / f"glimmer-mini-{quant}.gguf"
    out = work / "logits.f32"
    run(probe, "logits", model, work / "prompts-ids.txt", out, kv, flash, THREADS)
    result = python("compare_logits.py", args.models / f"ref-{quant}.json", out)
    run(probe, "logits", model, work / "val-ids.txt", out, kv, flash, THREADS)
    perplexity = python("perplexity.py", work / "val-ids.txt", out, "--vocab", 4096, "--from", SCORED_FROM)
    out.unlink()
    prompts = {p["name"]: {key: p[key] for key in ("kl_mean", "max_dlogit", "top1")} for p in result["prompts"]}
    return rounded({"total": result["total"], **prompts}), rounded(perplexity)


def write_record(record, path):
    """One line a part of a result: readable, and short enough to read in a diff."""
    head = json.dumps({k: v for k, v in record.items() if k != "results"}, indent=1).rstrip("\n}")
    row = lambda r: "  {\n" + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in r.items()) + "\n  }"
    rows = [{**{k: v for k, v in r.items() if k != "against_reference"}, **r["against_reference"]} for r in record["results"]]
    with open(path, "w") as file:
        file.write(head + ',\n "results": [\n' + ",\n".join(map(row, rows)) + "\n ]\n}\n")


def cpu_name():
    with open("/proc/cpuinfo") as file:
        fields = dict(map(str.strip, line.split(":", 1)) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    flags = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16") if f in fields["flags"].split()]
    return {"name": fields["model name"], "family": int(fields["cpu family"]), "model": int(fields["model"]), "flags": flags}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("prompts")
    parser.add_argument("val")
    parser.add_argument("out")
    parser.add_argument("--variants", nargs="+", default=["native", "avx2"])
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the id files (default: a temporary one)")
    args = parser.parse_args()

    temporary = tempfile.TemporaryDirectory()
    work = args.keep or pathlib.Path(temporary.name)
    run(sys.executable, HERE / "write_ids.py", args.prompts, work / "prompts-ids.txt")
    first_probe = args.dir / args.variants[0] / "bin/llama-probe"
    write_windows(first_probe, args.models / "glimmer-mini-F16.gguf", args.val, work / "val-ids.txt")

    rows = []
    for variant in args.variants:
        for quant in FILES:
            for kv, flash in KV:
                against, perplexity = measure(args.dir / variant / "bin/llama-probe", args, work, quant, kv, flash)
                rows.append({"build": variant, "file": quant, "kv": kv, "flash_attention": bool(flash),
                             "against_reference": against, "perplexity": perplexity})
                total = against["total"]
                print(f"{variant:7} {quant:7} KV {kv:5} fa {flash}  KL {total['kl_mean']:.2e}  max |d| {total['max_dlogit']:.4f}  "
                      f"top-1 {total['top1']:.2%}  ppl {perplexity['perplexity']:.4f}", flush=True)
    record = {
        "what": "llama.cpp on glimmer-mini against the float64 reference, and perplexity on held-out text",
        "command": "scripts/llama_truth.py DIR MODELS PROMPTS VAL OUT",
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "engine": "llama.cpp from the sdist llama-cpp-python 0.3.36, builds of scripts/build_llama_cpp.sh",
        "machine": {"cpu": cpu_name(), "cpus": os.cpu_count(), "system": platform.system(), "threads": THREADS},
        "commands": [
            "write_ids.py prompts.json prompts-ids.txt",
            f"llama-probe logits glimmer-mini-FILE.gguf prompts-ids.txt logits.f32 KV FLASH {THREADS}",
            "compare_logits.py ref-FILE.json logits.f32 --json",
            f"llama-probe logits glimmer-mini-FILE.gguf val-ids.txt logits.f32 KV FLASH {THREADS}",
            f"perplexity.py val-ids.txt logits.f32 --vocab 4096 --from {SCORED_FROM} --json",
        ],
        "perplexity_over": f"val.txt tokenised whole, no BOS; first {WINDOWS} windows of {WINDOW} ids, each from an empty "
                           f"cache; window positions {SCORED_FROM}..{WINDOW - 1} scored, each by the row before it",
        "results": rows,
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
