#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU pod slice. The run does not need the connection: if it is lost, or after Ctrl-C,
# the same command follows the run again.
# Usage: TPU=name ZONE=zone bash launch/tpu_pod.sh configs/sop_baseline.py [options of the main command]
#        TPU=name ZONE=zone bash launch/tpu_pod.sh --stop       saves a checkpoint and ends the run
# Every host needs this project in ~/dml_jax with launch/locks/tpu.txt installed in .venv. The work directory must be on
# storage that all hosts share (a bucket mounted with gcsfuse, or Filestore). ~/dml_jax/.launch/log holds the output.
set -euo pipefail
: "${1:?a configuration, or --stop}"

# What each host executes. The run holds a lock until it ends; nothing else of it is needed to find or to follow it.
on_host=$(cat <<'END'
set -euo pipefail
cd ~/dml_jax
mkdir -p .launch
running() { ! flock --nonblock .launch/lock true; }
if [ "$1" = --stop ]; then
  running || { echo "nothing is running on $(hostname)"; exit 0; }
  kill -TERM "$(cat .launch/pid)"
elif running; then
  echo "following the run that is in progress on $(hostname); its options are those of its start"
else
  rm -f .launch/pid .launch/code
  config=$1; shift
  export PYTHONUNBUFFERED=1
  setsid flock --nonblock --close .launch/lock bash -c '
    .venv/bin/python -m dml_jax.main --coordinator=auto "$@" &
    echo $! > .launch/pid
    code=0
    wait $! || code=$?
    echo $code > .launch/code' run --config="$config" "$@" > .launch/log 2>&1 < /dev/null &
  until [ -s .launch/pid ]; do sleep 0.2; done
fi
tail --pid="$(cat .launch/pid)" --lines=+1 --follow .launch/log
flock .launch/lock true
exit "$(cat .launch/code)"
END
)
exec gcloud compute tpus tpu-vm ssh "${TPU:?name of the TPU}" --zone="${ZONE:?zone of the TPU}" --worker=all \
  --command="bash -c $(printf '%q' "$on_host") tpu_pod.sh $(printf '%q ' "$@")"
