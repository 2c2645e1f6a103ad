# shellcheck shell=bash
# Sourced by the launch scripts: creates .venv in the project, and installs locked packages and the command dml-jax once.
# Usage: prepare NAME   a file of launch/locks: cpu, cuda, tpu, dev (cpu with the tests and most extras), ray or onnx

unset PYTHONDONTWRITEBYTECODE # without compiled files, each process would spend five seconds on compiling the libraries

prepare() {
  local python=${PYTHON:-python3} stamp
  command -v "$python" >/dev/null || { echo "error: $python is not installed; install Python 3.11, 3.12 or 3.13, or set PYTHON" >&2; exit 2; }
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' ||
    { echo "error: $("$python" --version) is not supported; set PYTHON to a Python 3.11, 3.12 or 3.13" >&2; exit 2; }
  [ -f "launch/locks/$1.txt" ] || { echo "error: launch/locks has no $1.txt; use cpu, cuda, tpu, dev, ray or onnx" >&2; exit 2; }
  stamp=.venv/installed-$1-$(cat launch/env.sh "launch/locks/$1.txt" | cksum | cut -d' ' -f1)
  [ -f "$stamp" ] && return
  mkdir -p .venv
  # Of several first starts, one installs and the others wait. The lock belongs to descriptor 9, which is closed after
  # the braces or when this shell ends; macOS has no command for it. Some network file systems have no locks.
  {
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || echo "warning: start this on one host first" >&2
    [ -f "$stamp" ] || install_lock "$1" || return
  } 9>.venv/lock
}

install_lock() { # uses the variables of `prepare`
  echo "installing launch/locks/$1.txt into .venv (once, a minute or two)"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  local install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
  if command -v uv >/dev/null; then
    install=(uv pip install --quiet --python .venv/bin/python)
  elif "${install[@]}" uv 2>/dev/null; then
    install=(.venv/bin/uv pip install --quiet --python .venv/bin/python)
  fi
  "${install[@]}" --require-hashes -r "launch/locks/$1.txt" || return
  # The command dml-jax; an image is given the requirements before the package.
  if [ -f pyproject.toml ]; then "${install[@]}" --no-deps --editable . || return; fi
  touch "$stamp"
}
