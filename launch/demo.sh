#!/usr/bin/env bash
# Trains a network on handwritten digits, evaluates on unseen digits, exports NumPy arrays, writes the report.
# Usage: bash launch/demo.sh [--accelerator=cpu|cuda|tpu] [options of python -m dml_jax.main]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/env.sh
lock=cpu
case "${1:-}" in
  --accelerator=cpu | --accelerator=cuda | --accelerator=tpu) lock=${1#*=}; shift ;;
  --accelerator=*) echo "error: $1: must be cpu, cuda or tpu" >&2; exit 2 ;;
esac
prepare "$lock"
exec .venv/bin/python -m dml_jax.main --config=configs/digits_baseline.py "$@"
