#!/usr/bin/env bash
# Trains a network on handwritten digits, evaluates on unseen digits, exports NumPy arrays, writes the report.
# Usage: bash launch/demo.sh [--accelerator=cpu|cuda|tpu] [options of python -m dml_jax.main]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/env.sh
requirements=requirements.txt
case "${1:-}" in
  --accelerator=cpu) shift ;;
  --accelerator=cuda | --accelerator=tpu) requirements=requirements-${1#*=}.txt; shift ;;
  --accelerator=*) echo "error: $1: must be cpu, cuda or tpu" >&2; exit 2 ;;
esac
prepare "$requirements"
exec .venv/bin/python -m dml_jax.main --config=configs/digits_baseline.py "$@"
