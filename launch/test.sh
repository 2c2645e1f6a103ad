#!/usr/bin/env bash
# Runs the linter, the type checker and the tests. Usage: bash launch/test.sh [options of pytest]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/env.sh
prepare requirements.txt requirements-dev.txt
export JAX_PLATFORMS=cpu
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
# All tests of a file run on one worker, which compiles its programs once; the slowest files start first.
exec .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
