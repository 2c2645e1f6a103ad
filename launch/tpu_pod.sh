#!/usr/bin/env bash
# Starts one process on every host of a Cloud TPU pod slice.
# Usage: TPU=name ZONE=zone bash launch/tpu_pod.sh configs/sop_hist.py [options of the main command]
# Every host needs this project in ~/dml_jax with requirements-tpu.txt installed in .venv, and the work directory must be
# on storage shared by all hosts (a gs:// bucket mounted with gcsfuse, or Filestore).
set -euo pipefail
config=$1; shift
exec gcloud compute tpus tpu-vm ssh "${TPU:?name of the TPU}" --zone="${ZONE:?zone of the TPU}" --worker=all --command \
  "cd ~/dml_jax && .venv/bin/python -m dml_jax.main --config=$config --coordinator=auto $*"
