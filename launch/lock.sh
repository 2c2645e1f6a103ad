#!/usr/bin/env bash
# Writes launch/locks: every package that the launch scripts install, with its hashes. Needs uv. Versions that fit stay.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lock() { # NAME, then what is locked
  local name=$1
  shift
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
    "$@" --output-file "launch/locks/$name.txt"
}
pins=$(mktemp)
trap 'rm "$pins"' EXIT
lock dev requirements.txt requirements-dev.txt
grep -oE '^[A-Za-z0-9._-]+==[^\\]+' launch/locks/dev.txt >"$pins"
lock cpu requirements.txt --constraints "$pins"
lock cuda requirements-cuda.txt --constraints "$pins"
lock tpu requirements-tpu.txt --constraints "$pins"
lock ray requirements.txt pyproject.toml --extra ray --constraints "$pins"
# No later jax2onnx fits this orbax, and this one no later JAX.
lock onnx requirements.txt pyproject.toml --extra onnx --overrides <(printf 'jax==0.10.2\nflax==0.12.8\nnumpy==2.4.6\n')
