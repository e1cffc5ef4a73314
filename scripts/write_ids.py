#!/usr/bin/env python3
"""Writes the ids of a prompts file (or of a reference file) as text: one prompt a line, ids separated by spaces.

usage: write_ids.py PROMPTS.json IDS.txt
PROMPTS.json is a list of {"ids": [...]} or {"prompts": [the same]}. The order of the lines is the order of the prompts:
`muser logits` and `llama-probe logits` write rows in that order, and compare_logits.py expects it."""
import json
import sys


def main():
    source, target = sys.argv[1:3]
    with open(source) as file:
        prompts = json.load(file)
    if isinstance(prompts, dict):
        prompts = prompts["prompts"]
    with open(target, "w") as file:
        for prompt in prompts:
            file.write(" ".join(map(str, prompt["ids"])) + "\n")


if __name__ == "__main__":
    main()
