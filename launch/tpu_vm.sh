#!/usr/bin/env bash
# A Cloud TPU slice, or several, from the queue to its deletion. docs/launching.md explains it step by step.
#
#   launch/tpu_vm.sh create  NAME --type=v5litepod-16 [--spot] [--service-account=EMAIL]
#   launch/tpu_vm.sh status  NAME                 state of the request, and of each worker
#   launch/tpu_vm.sh install NAME                 this working tree and its packages, on all workers
#   launch/tpu_vm.sh run     NAME -- COMMAND      the same command on all workers, in the background
#   launch/tpu_vm.sh logs    NAME [--node=0] [--worker=0]   follows what a worker prints
#   launch/tpu_vm.sh stop    NAME                 saves and stops; `run` goes on from there
#   launch/tpu_vm.sh watch   NAME --type=... [--spot] [--delete] -- COMMAND
#                                                 all of it, again after each preemption
#   launch/tpu_vm.sh delete  NAME                 the slice, its disks and the request
#
# --node-count=2 makes it two slices, nodes 0 and 1 of one request, for a command that runs on both.
#
# `create` and `watch` pass on flags of gcloud's command: --create=--reserved, and each further one
# with its own --create=, such as --create=--network=NAME or --create=--internal-ips; with --alpha by
# `gcloud alpha`, which some flags need (--create=--provisioning-model=flex-start). --ssh=FLAG is
# passed on to ssh and scp, such as --ssh=--tunnel-through-iap.
#
# Every action takes --project=ID and --zone=ZONE (or CLOUDSDK_CORE_PROJECT and
# CLOUDSDK_COMPUTE_ZONE), and --dry-run, which needs neither, prints the commands and runs none. A
# path /gcs/BUCKET/... in a COMMAND is gs://BUCKET/..., which each worker mounts; gs://... needs none.
#
# gcloud's commands: https://cloud.google.com/sdk/gcloud/reference/compute/tpus/queued-resources and
# https://cloud.google.com/sdk/gcloud/reference/compute/tpus/tpu-vm
set -euo pipefail
cd "$(dirname "$0")/.."

script=t5x_like/launch/worker.sh  # there, from the home directory
log=t5x_like/runs/worker/log
actions="create status install run logs stop watch delete"
patience=10  # looks at a worker that does not answer: ten minutes
options="--type --node-count --spot --service-account --create --alpha --ssh --project --zone --node"
options+=" --worker --every --restarts --delete"

fail() {
  echo "error: $*" >&2
  exit 2
}

# Prints the comment at the top of this file.
help() {
  sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//;p}' launch/tpu_vm.sh
  exit 0
}

# Words as a shell reads them back, quoted only where they must be.
quoted() {
  local word text="" plain='^[A-Za-z0-9_./:=,@%+-]+$'
  for word in "$@"; do
    if [[ $word =~ $plain ]]; then
      text+="$word "
    elif [[ $word =~ ^(--[a-z-]+=)(.*) ]]; then
      text+="${BASH_REMATCH[1]}${BASH_REMATCH[2]@Q} "
    else
      text+="${word@Q} "
    fi
  done
  echo "${text% }"
}

# Runs a command that changes something, or prints it.
change() {
  if [[ $dry_run ]]; then quoted "$@"; else "$@"; fi
}

queued_resources() {
  change gcloud compute tpus queued-resources "$@" "${where[@]}"
}

# on NODE WORKER COMMAND: runs a line of shell on one worker of one slice, or on `all`. gcloud asks
# nothing: a watch has nobody to answer. A worker that is lost does not hold the connection for ever.
on() {
  change gcloud compute tpus queued-resources ssh "$name" "${where[@]}" --quiet --node="$1" \
    --worker="$2" --ssh-flag="-o ConnectTimeout=30" --ssh-flag="-o ServerAliveInterval=15" \
    "${ssh_flags[@]}" --command="$3"
}

create() {
  local nodes=(--node-id="$name") flags=("${create_flags[@]}")
  if ((node_count > 1)); then nodes=(--node-count="$node_count" --node-prefix="$name"); fi
  if [[ $spot ]]; then flags+=(--spot); fi
  if [[ $service_account ]]; then flags+=(--service-account="$service_account"); fi
  echo "An hour of $node_count $type is $chips chip-hours, on $hosts hosts" >&2
  change gcloud ${alpha:+alpha} compute tpus queued-resources create "$name" "${nodes[@]}" \
    --accelerator-type="$type" --runtime-version="$runtime_version" "${flags[@]}" "${where[@]}"
}

status() {
  queued_resources describe "$name" --format="value(state.state)"
  ask
}

# The tree as it is, with what is changed and new, without what git ignores.
install() {
  local archive=t5x_like.tar.gz files="git ls-files -z --cached --others --exclude-standard"
  change mkdir -p runs &&
    change bash -c "$files | tar -czf runs/$archive --null --files-from=- --ignore-failed-read" &&
    queued_resources scp "runs/$archive" "$name:$archive" "${ssh_flags[@]}" \
      --quiet --node=all --worker=all &&
    on all all "mkdir -p t5x_like && tar -xzf $archive -C t5x_like && bash $script install"
}

run() {
  on all all "bash $script start $(quoted "${buckets[@]}" -- "${command[@]}")"
}

# The state of the command on each worker; before the installation there is no script to report it.
ask() {
  on all all "if [ -e $script ]; then bash $script state; else echo state=new; fi"
}

logs() {
  on "$node" "$worker" "tail -n 50 -F $log"
}

stop() {
  on all all "bash $script stop"
}

delete() {
  queued_resources delete "$name" --force --quiet
}

# The state of the request: ABSENT where there is none, PREEMPTED where a slice is gone and the
# request is not updated yet.
slice_state() {
  local answer slice number state
  if ! answer=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" \
    --format="value(state.state)" 2>&1); then
    # A network failure must not request another slice.
    if [[ $answer == *NOT_FOUND* ]]; then echo ABSENT; else echo "unknown: ${answer%%$'\n'*}"; fi
    return
  fi
  for ((number = 0; number < node_count; number++)); do
    if [[ $answer != ACTIVE ]]; then break; fi
    # The nodes of --node-prefix=t5 are t5-0, t5-1, ...
    if ((node_count > 1)); then slice=$name-$number; else slice=$name; fi
    state=$(gcloud compute tpus tpu-vm describe "$slice" "${where[@]}" --format="value(state)" \
      2> /dev/null) || true
    if [[ $state == PREEMPTED || $state == TERMINATED ]]; then answer=PREEMPTED; fi
  done
  echo "$answer"
}

# The worst state of the command on any worker, since a lost worker stops the others, and the last
# line of that worker's log; `unreachable` and gcloud's last word where a worker does not answer.
command_state() {
  local answer state
  answer=$(ask 2>&1) || true
  if (($(grep -c "^state=" <<< "$answer") < hosts)); then
    echo "unreachable: ${answer##*$'\n'}"
    return
  fi
  for state in nonfinite new failed stopped installed running finished; do
    if grep --max-count=1 "^state=$state" <<< "$answer" | cut -d= -f2-; then return; fi
  done
}

log() {
  echo "$(date '+%F %T')  $*"
}

# Counts the looks at a slice of which a worker does not answer. A worker that stays silent is lost
# with its slice, whatever the request's state: Cloud TPU replaces no single worker.
silent_once() {
  if ((++silent_looks < patience)); then return; fi
  silent_looks=0
  failed_once "a worker has not answered $patience times"
  delete || true
}

# Counts a failure of a watch: it may be transient, but not for ever.
failed_once() {
  if ((failures_left-- == 0)); then finish 1 "gave up after $restarts failures: $*"; fi
}

# finish STATUS WORDS...: ends a watch. The slice costs until it is deleted.
finish() {
  local result=$1
  shift
  log "$name: $*"
  if ((result)); then on 0 0 "tail -n 30 $log" || true; fi
  if [[ $delete_at_end ]]; then
    delete
  else
    log "$name takes $chips chip-hours an hour until launch/tpu_vm.sh delete $name"
  fi
  exit "$result"
}

# The states: https://cloud.google.com/tpu/docs/queued-resources. A preempted slice is SUSPENDED;
# neither it nor one that FAILED comes back: they are deleted and requested again.
watch() {
  local state last="" failures_left=$restarts silent_looks=0
  while true; do
    state=$(slice_state)
    if [[ $state == ACTIVE ]]; then state=$(command_state); fi
    if [[ $state != "$last" ]]; then log "$name: $state"; fi
    last=$state
    if [[ $state != unreachable* ]]; then silent_looks=0; fi
    case $state in
      unreachable*) silent_once ;;
      ABSENT) create || failed_once "the slice cannot be requested" ;;
      SUSPENDED | PREEMPTED) delete || failed_once "the slice cannot be deleted" ;;
      FAILED)
        queued_resources describe "$name" --format="value(state.failedData.error.message)" || true
        failed_once "the request FAILED"
        delete || true
        ;;
      new*) { install && run; } || failed_once "the installation failed" ;;
      installed*) run || failed_once "the command cannot be started" ;;
      failed* | stopped*)
        failed_once "the command failed"
        { stop && run; } || true  # the workers that wait for a lost one must end first
        ;;
      nonfinite*)
        finish 3 "the loss is not finite, as it would be again: see train.on_nonfinite" ;;
      finished*) finish 0 "finished" ;;
    esac
    sleep "$every"
  done
}

# What a watch runs when nothing goes wrong.
dry_watch() {
  create
  install
  run
  ask
  if [[ $delete_at_end ]]; then delete; fi
}

# Reads the command line into variables that the actions share.
read_arguments() {
  case ${1:-} in -h | --help) help ;; esac
  if (($# < 2)); then fail "launch/tpu_vm.sh ACTION NAME [--option=value ...]: $actions"; fi
  action=$1 name=$2
  shift 2
  project=${CLOUDSDK_CORE_PROJECT:-} zone=${CLOUDSDK_COMPUTE_ZONE:-}
  type="" node_count=1 spot="" service_account="" node=0 worker=0 every=60 restarts=20 delete_at_end="" dry_run=""
  alpha="" create_flags=() ssh_flags=() command=() buckets=()
  while (($#)); do
    case $1 in
      --type=*) type=${1#*=} ;;
      --node-count=*) node_count=${1#*=} ;;
      --spot) spot=yes ;;
      --service-account=*) service_account=${1#*=} ;;
      --create=--?*) create_flags+=("${1#*=}") ;;
      --alpha) alpha=yes ;;
      --ssh=--?*) ssh_flags+=("${1#*=}") ;;
      --project=*) project=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --node=*) node=${1#*=} ;;
      --worker=*) worker=${1#*=} ;;
      --every=*) every=${1#*=} ;;
      --restarts=*) restarts=${1#*=} ;;
      --delete) delete_at_end=yes ;;
      --dry-run) dry_run=yes ;;
      --)
        shift
        command=("$@")
        break
        ;;
      *) fail "unknown option $1: choose from $options --dry-run, written --option=value" ;;
    esac
    shift
  done
}

# All arguments are checked before anything runs.
check_arguments() {
  local slice
  if [[ " $actions " != *" $action "* ]]; then fail "unknown action $action: choose from $actions"; fi
  if [[ ! $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]]; then
    fail "NAME=$name: small letters, digits and hyphens, the first a letter"
  fi
  if [[ $dry_run ]]; then project=${project:-PROJECT} zone=${zone:-us-west4-a}; fi
  if [[ ! $project ]]; then fail "no project: set --project=ID or CLOUDSDK_CORE_PROJECT"; fi
  if [[ ! $zone ]]; then fail "no zone: set --zone=us-west4-a or CLOUDSDK_COMPUTE_ZONE"; fi
  if [[ ! $zone =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]]; then
    fail "--zone=$zone is not a zone: a zone is a region and a letter, such as us-west4-a"
  fi
  where=(--project="$project" --zone="$zone")
  if [[ $action == create || $action == watch ]]; then
    if [[ ! $type ]]; then fail "no accelerator type: --type=v5litepod-16"; fi
    slice=$(python3 -m launch.accelerators "$type") || exit 2
    if [[ ! $node_count =~ ^[1-9][0-9]*$ ]]; then
      fail "--node-count=$node_count: a whole number of slices, 1 or more"
    fi
    read -r runtime_version chips hosts <<< "$slice"
    chips=$((chips * node_count)) hosts=$((hosts * node_count))
  fi
  if [[ ! $every$restarts =~ ^[0-9]+$ ]]; then
    fail "--every=$every --restarts=$restarts: whole numbers, of seconds and of failures"
  fi
  if [[ $action == run || $action == watch ]]; then check_command; fi
  if [[ ! $dry_run ]] && ! command -v gcloud > /dev/null; then
    fail "gcloud is not here: https://cloud.google.com/sdk/docs/install"
  fi
}

# The command, and the buckets that it names.
check_command() {
  local word kept="" rest bucket
  if ((${#command[@]} == 0)); then
    fail "no command: $action $name ... -- python -m t5x_like.train ..."
  fi
  for word in "${command[@]}"; do
    case $word in
      *workdir=/gcs/?* | *workdir=gs://?*) kept=yes ;;
    esac
    rest=$word
    while [[ $rest =~ /gcs/([a-z0-9][a-z0-9._-]*)(.*) ]]; do
      bucket=${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]}
      if [[ " ${buckets[*]} " != *" $bucket "* ]]; then buckets+=("$bucket"); fi
    done
  done
  if [[ $action == watch && ! $kept ]]; then
    fail "no --config.workdir=/gcs/BUCKET/... or gs://BUCKET/...: a preempted slice takes its disks along"
  fi
}

read_arguments "$@"
check_arguments
if [[ $dry_run && $action == watch ]]; then action=dry_watch; fi
"$action"
