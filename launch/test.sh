#!/usr/bin/env bash
# Lints, checks types and runs the tests. Usage: bash launch/test.sh [options of pytest]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/env.sh
prepare requirements.txt requirements-dev.txt
export JAX_PLATFORMS=cpu
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
# a file stays on one worker, which compiles its programs once; the slowest come first
exec .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
