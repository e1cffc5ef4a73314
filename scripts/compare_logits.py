#!/usr/bin/env python3
"""How far an engine's logits are from the float64 reference: KL divergence, largest logit difference, top-1 agreement.

usage: compare_logits.py REF.json LOGITS.f32 [--json]      (needs numpy)
LOGITS.f32: little-endian f32, one row of the whole vocabulary per position, every prompt of REF.json in file order; what
`muser logits MODEL --ids IDS --out LOGITS.f32` writes for the ids that write_ids.py takes from REF.json.

KL(reference || engine) per position runs over the reference's 32 likeliest tokens and one bucket for all the others, with
each side normalised over its whole vocabulary; the mean over positions is in nats. The bucket hides differences inside
it, so this is a lower bound; for the prompts whose full reference lies beside REF.json (REF.f32), "KL full" runs over the
whole vocabulary. "max |d|" is taken over the 32 logits, "full" likewise over the vocabulary."""
import argparse
import json
import pathlib

import numpy as np


def log_sum_exp(z):
    top = z.max(1)
    return top + np.log(np.exp(z - top[:, None]).sum(1))


def kl_over_top(ref_log_p, log_q):
    """Both [positions, 32]: log-probabilities of the reference's likeliest tokens. Returns [positions]."""
    p, q = np.exp(ref_log_p), np.exp(log_q)
    # Rounding of the stored logits can push a sum of probabilities a hair above one.
    p_rest, q_rest = (np.maximum(1 - x.sum(1), 1e-9) for x in (p, q))
    return (p * (ref_log_p - log_q)).sum(1) + p_rest * np.log(p_rest / q_rest)


def kl_full(ref, z):
    log_p, log_q = (x - log_sum_exp(x)[:, None] for x in (ref.astype(np.float64), z))
    return (np.exp(log_p) * (log_p - log_q)).sum(1)


def compare(prompt, z, full):
    z = z.astype(np.float64)
    if not np.isfinite(z).all():
        raise SystemExit(f"prompt {prompt['name']}: the engine's logits hold NaN or infinity")
    top_ids = np.array(prompt["top_ids"])
    ref, own = np.array(prompt["top_logits"]), np.take_along_axis(z, top_ids, 1)
    lse = log_sum_exp(z)
    kl = kl_over_top(ref - np.array(prompt["logsumexp"])[:, None], own - lse[:, None])
    delta = np.abs(own - ref)
    ids = np.array(prompt["ids"])
    result = {
        "name": prompt["name"],
        "positions": len(z),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "max_dlogit": float(delta.max()),
        "mean_dlogit": float(delta.mean()),
        "top1": float((z.argmax(1) == top_ids[:, 0]).mean()),
        "nll": float((lse[:-1] - z[np.arange(len(z) - 1), ids[1:]]).mean()),
        "nll_reference": prompt["nll"],
    }
    if full is not None:
        result["max_dlogit_full"] = float(np.abs(z - full).max())
        result["kl_full_mean"] = float(kl_full(full, z).mean())
    return result


def weighted_mean(results, key):
    return sum(r[key] * r["positions"] for r in results) / sum(r["positions"] for r in results)


def total(results):
    whole = [r for r in results if "kl_full_mean" in r]
    return {
        "positions": sum(r["positions"] for r in results),
        "kl_mean": weighted_mean(results, "kl_mean"),
        "kl_max": max(r["kl_max"] for r in results),
        "max_dlogit": max(r["max_dlogit"] for r in results),
        "kl_full_mean": weighted_mean(whole, "kl_full_mean") if whole else None,
        "mean_dlogit": weighted_mean(results, "mean_dlogit"),
        "max_dlogit_full": max((r["max_dlogit_full"] for r in whole), default=None),
        "top1": weighted_mean(results, "top1"),
    }


def read_rows(path, positions):
    data = np.fromfile(path, "<f4")
    if not positions or not data.size or data.size % positions:
        raise SystemExit(f"{path}: {data.size} values are not whole rows for {positions} positions")
    return data.reshape(positions, -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference")
    parser.add_argument("logits")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()

    with open(args.reference) as file:
        prompts = json.load(file)["prompts"]
    rows = read_rows(args.logits, sum(len(p["ids"]) for p in prompts))
    full_path = pathlib.Path(args.reference).with_suffix(".f32")
    full = None
    if full_path.exists():
        full = read_rows(full_path, sum(len(p["ids"]) for p in prompts if p["full"]))
        if full.shape[1] != rows.shape[1]:
            raise SystemExit(f"{args.logits}: rows of {rows.shape[1]} values, the reference has {full.shape[1]}")

    results, at, full_at = [], 0, 0
    for prompt in prompts:
        n = len(prompt["ids"])
        reference = None
        if prompt["full"] and full is not None:
            reference = full[full_at : full_at + n]
            full_at += n
        results.append(compare(prompt, rows[at : at + n], reference))
        at += n
    summary = total(results)

    if args.json:
        print(json.dumps({"prompts": results, "total": summary}, indent=1))
        return
    print(f"{'prompt':8} {'pos':>4} {'KL mean':>9} {'KL max':>9} {'KL full':>9} {'max |d|':>8} {'mean |d|':>8} {'full':>8} {'top-1':>7}")
    for r in results + [{"name": "total", **summary}]:
        optional = lambda key, form: "" if r.get(key) is None else format(r[key], form)
        print(f"{r['name']:8} {r['positions']:4} {r['kl_mean']:9.2e} {r['kl_max']:9.2e} {optional('kl_full_mean', '.2e'):>9} "
              f"{r['max_dlogit']:8.4f} {r['mean_dlogit']:8.4f} {optional('max_dlogit_full', '.4f'):>8} {r['top1']:7.2%}")


if __name__ == "__main__":
    main()
