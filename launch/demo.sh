#!/usr/bin/env bash
# Trains HIST on real handwritten digits, evaluates on digits it has never seen, exports NumPy arrays, draws figures.
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
exec .venv/bin/python -m dml_jax.main --config=configs/digits_hist.py "$@"
