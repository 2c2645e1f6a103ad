#!/usr/bin/env bash
# Runs the linter, the type checker and the tests. Usage: bash launch/test.sh [options of pytest]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/env.sh
# Python 3.13 gets a newer JAX than 3.11, which compiles faster.
if [ -z "${PYTHON:-}" ] && python3.13 -c "" 2>/dev/null; then PYTHON=python3.13; fi
prepare dev
export JAX_PLATFORMS=cpu DML_JAX_EXTRAS=${DML_JAX_EXTRAS-faiss,gcs,heic,optuna,tensorboard}  # in launch/locks/dev.txt
.venv/bin/ruff check .
.venv/bin/ruff format --check .
# The type checker uses one core only, so it runs beside the tests; its output follows theirs.
output=$(mktemp)
.venv/bin/mypy >"$output" 2>&1 &
checker=$!
trap 'kill "$checker" 2>/dev/null || true; rm "$output"' EXIT
# All tests of a file run on one worker, which compiles its programs once; the slowest files start first.
tests=0 types=0
.venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@" || tests=$?
wait "$checker" || types=$?
cat "$output"
exit $((tests ? tests : types))
