#!/usr/bin/env bash
# What happens on each machine of a run: install, start, run, stop, state. tpu_vm.sh calls it over
# ssh; `run` is also the entry of the containers on GKE.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//;p}' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

traces=runs/worker  # log, pid, and the exit status once the command has ended

# Ubuntu 22.04, which Cloud TPU's machines have, brings Python 3.10; uv brings a newer one.
# https://docs.astral.sh/uv/guides/install-python/
install() {
  local uv=$HOME/.local/bin/uv
  if [[ ! -x $uv ]]; then python3 -m pip install --user --quiet uv; fi
  "$uv" python install 3.12
  PYTHON=$("$uv" python find --system 3.12) bash launch/environment.sh
  .venv/bin/python -m pip install --quiet --constraint requirements.lock --editable '.[tpu,gcs]'
}

# https://cloud.google.com/storage/docs/cloud-storage-fuse/install
install_gcsfuse() {
  local key=/usr/share/keyrings/cloud.google.asc apt=https://packages.cloud.google.com/apt
  curl --fail --silent --show-error "$apt/doc/apt-key.gpg" | sudo tee "$key" > /dev/null
  echo "deb [signed-by=$key] $apt gcsfuse-$(lsb_release -cs) main" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list > /dev/null
  # A machine that has just started may be updating itself.
  sudo apt-get -o DPkg::Lock::Timeout=600 -qq update
  sudo apt-get -o DPkg::Lock::Timeout=600 -qq install gcsfuse > /dev/null
}

# Mounts gs://BUCKET at /gcs/BUCKET. All hosts write parts of one checkpoint, so none may remember
# what a folder held: gcsfuse's docs/semantics.md recommends a metadata cache of 0 seconds then.
mount_bucket() {
  local bucket=$1 folder=/gcs/$1
  if mountpoint --quiet "$folder"; then return; fi
  if ! command -v gcsfuse > /dev/null; then install_gcsfuse; fi
  sudo mkdir -p "$folder"
  sudo chown "$(id -u):$(id -g)" "$folder"
  gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 \
    "$bucket" "$folder" > /dev/null
}

# Runs a command to its end and gives its status, but 143 where a signal asked it to stop: train
# saves and exits with 0 then, which GKE would take for the end of the work.
run() {
  local child stopped=0 status=0
  # Before the command starts, for a signal that comes as soon as it does: it would end this shell
  # alone. One that comes earlier still finds no $! and ends it, with nothing to save.
  trap 'stopped=1; kill -TERM "$!" 2> /dev/null || true' TERM INT
  PATH=$PWD/.venv/bin:$PATH "$@" &
  child=$!
  # A trapped signal ends a wait, not the command, which is still saving.
  while kill -0 "$child" 2> /dev/null; do wait "$child" || true; done
  wait "$child" || status=$?
  if ((stopped)); then status=143; fi
  return "$status"
}

# `run` in the background of a machine, which leaves its traces, each of them whole at once: who
# reads an empty one would take the command for failed.
record() {
  local status=0
  echo $$ > "$traces/new" && mv "$traces/new" "$traces/pid"
  run "$@" || status=$?
  echo "$status" > "$traces/new" && mv "$traces/new" "$traces/exit"
}

# After a restart of the machine the number may be another program's.
running() {
  [[ -e $traces/pid && ! -e $traces/exit ]] &&
    [[ $(ps -o args= -p "$(< "$traces/pid")") == *worker.sh* ]]
}

# start [BUCKET...] -- COMMAND: a second call while the command runs does nothing.
start() {
  if running; then
    echo "runs already"
    return
  fi
  while [[ $1 != -- ]]; do
    mount_bucket "$1"
    shift
  done
  shift
  mkdir -p "$traces"
  rm -f "$traces/pid" "$traces/exit"
  # Of its own session, so that it outlives the ssh connection.
  JAX_NUM_PROCESSES=auto setsid bash launch/worker.sh record "$@" \
    > "$traces/log" 2>&1 < /dev/null &
  until [[ -e $traces/pid ]]; do sleep 0.1; done
  echo "started"
}

# Asks the command to save and stop, and waits until it has, five minutes at most.
stop() {
  local pid waited
  if ! running; then return; fi
  pid=$(< "$traces/pid")
  kill -TERM "$pid"
  for ((waited = 0; waited < 3000; waited++)); do
    if ! running; then return; fi
    sleep 0.1
  done
  kill -KILL -- "-$pid"
}

# One line: `state=running`, `finished`, `failed`, `nonfinite`, `stopped`, `installed` or `new`, and
# the last line of the log. `failed` is also a command that a restart of the machine has ended.
state() {
  local word
  if running; then
    word=running
  elif [[ -e $traces/exit ]]; then
    case $(< "$traces/exit") in
      0) word=finished ;;
      143) word=stopped ;;
      3) word=nonfinite ;;  # train's status for a loss that is not finite
      *) word=failed ;;
    esac
  elif [[ -e $traces/pid ]]; then
    word=failed
  elif [[ -e .venv/.installed ]]; then
    word=installed
  else
    word=new
  fi
  echo "state=$word $(tail -n 1 "$traces/log" 2> /dev/null || true)"
}

"$@"
