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
exec .venv/bin/python -m pytest -n auto "$@"
