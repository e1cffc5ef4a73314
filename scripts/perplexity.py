#!/usr/bin/env python3
"""Perplexity of an engine over fixed windows of ids, from the full logits it wrote for them.

usage: perplexity.py IDS LOGITS.f32 --vocab 4096 --from 256 [--json]      (needs numpy)
IDS: one window a line. LOGITS.f32: little-endian f32, one row of the vocabulary per position, windows in file order.
Each window is evaluated on its own from an empty cache. The tokens at window positions FROM .. end are scored, each with
the row of the position before it (row FROM-1 predicts token FROM), so every scored token has at least FROM tokens of
context: for windows of 512 and --from 256 that is 256 tokens a window. Perplexity is exp of the mean nll over all scored
tokens of all windows; the standard error is taken over windows, since tokens of one window are not independent."""
import argparse
import json

import numpy as np


def window_nll(z, ids, start):
    """Nats per scored token of one window. z: [positions, vocab]."""
    z = z[start - 1 : len(ids) - 1].astype(np.float64)
    top = z.max(1)
    lse = top + np.log(np.exp(z - top[:, None]).sum(1))
    return lse - z[np.arange(len(z)), ids[start:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ids")
    parser.add_argument("logits")
    parser.add_argument("--vocab", type=int, required=True)
    parser.add_argument("--from", dest="start", type=int, required=True, help="first scored position of a window (>= 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.start < 1:
        parser.error("--from must be at least 1: nothing predicts the first token")

    with open(args.ids) as file:
        windows = [np.array(line.split(), dtype=np.int64) for line in file if line.strip()]
    rows = np.memmap(args.logits, "<f4", "r")
    positions = sum(map(len, windows))
    if rows.size != positions * args.vocab:
        raise SystemExit(f"{args.logits}: {rows.size} values, expected {positions} rows of {args.vocab}")
    rows = rows.reshape(positions, args.vocab)

    nll, at = [], 0
    for ids in windows:
        nll.append(window_nll(rows[at : at + len(ids)], ids, args.start))
        at += len(ids)
    means = np.array([n.mean() for n in nll])
    mean = float(np.concatenate(nll).mean())
    error = float(means.std(ddof=1) / len(means) ** 0.5) if len(means) > 1 else 0.0
    result = {
        "windows": len(windows),
        "scored_tokens": sum(map(len, nll)),
        "nll": mean,
        "nll_standard_error": error,
        "perplexity": float(np.exp(mean)),
    }
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"perplexity {result['perplexity']:.4f}  nll {mean:.6f} +- {error:.6f}  "
              f"({result['scored_tokens']} tokens in {len(windows)} windows)")


if __name__ == "__main__":
    main()
