#!/usr/bin/env bash
# Starts one training process for each GPU of this machine, because one cannot read the images of eight.
# Usage: bash launch/each_gpu.sh GPUS NODES NODE --config=… --coordinator=HOST:PORT [options of the main command]
#        GPUS of each machine, number of machines (NODES), index of this one (NODE), address of the first
# SIGTERM must be sent to the process group. Ends with 2 if any process does, otherwise with the code of one that failed.
set -uo pipefail
gpus=${1:?usage: bash launch/each_gpu.sh GPUS NODES NODE OPTIONS} nodes=${2:?NODES} node=${3:?NODE}; shift 3
trap : TERM INT # the processes receive it, too, and are waited for
pids=() code=0
for ((gpu = 0; gpu < gpus; gpu++)); do
  # All see all GPUs, so that NCCL finds NVLink.
  JAX_LOCAL_DEVICE_IDS=$gpu .venv/bin/python -m dml_jax.main \
    --processes=$((gpus * nodes)) --process=$((gpus * node + gpu)) "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done # a signal ends `wait`, but not the process
  wait "$pid"
  ended=$?
  [ "$ended" -eq 0 ] || [ "$code" -eq 2 ] || code=$ended
done
exit "$code"
