#!/usr/bin/env bash
# A run on the GPUs of a Slurm cluster. docs/launching.md explains it step by step.
#
#   launch/slurm.sh submit --nodes=2 --gpus=8 [--per-process=gpu] [--name=t5x_like] \
#       [--sbatch="--partition=a100 --time=24:00:00"] [--dry-run] -- COMMAND
#   launch/slurm.sh logs   JOB        follows what it prints
#   launch/slurm.sh cancel JOB        saves and stops; `submit` resumes the run
#
# `--gpus` is of each node. There is one process for each GPU, or with --per-process=node for each
# node; JAX connects them by Slurm's variables. The job is put in the queue again when it is
# preempted, when a node is lost, and two minutes before its time is over, until the command is done.
# This folder, its .venv (with the extra `cuda`) and the workdir lie on disks that all nodes see.
#
# sbatch's options: https://slurm.schedmd.com/sbatch.html; the variables that JAX reads:
# https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html
set -euo pipefail

fail() {
  echo "error: $*" >&2
  exit 2
}

# Prints the comment at the top of this file.
help() {
  sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//;p}' launch/slurm.sh
}

submit() {
  local nodes="" gpus="" per_process=gpu name=t5x_like more=() dry_run="" processes words
  while (($#)) && [[ $1 != -- ]]; do
    case $1 in
      --nodes=*) nodes=${1#*=} ;;
      --gpus=*) gpus=${1#*=} ;;
      --per-process=*) per_process=${1#*=} ;;
      --name=*) name=${1#*=} ;;
      --sbatch=*) read -r -a more <<< "${1#*=}" ;;
      --dry-run) dry_run=yes ;;
      *) fail "unknown option $1: choose from --nodes --gpus --per-process --name --sbatch --dry-run" ;;
    esac
    shift
  done
  if (($# < 2)); then fail "no command: submit ... -- python -m t5x_like.train ..."; fi
  if [[ ! $nodes =~ ^[1-9][0-9]*$ ]]; then fail "--nodes=$nodes: how many nodes, such as 2"; fi
  if [[ ! $gpus =~ ^[1-9][0-9]*$ ]]; then fail "--gpus=$gpus: how many GPUs each node has"; fi
  case $per_process in
    gpu) processes=$gpus ;;
    node) processes=1 ;;
    *) fail "--per-process=$per_process: choose gpu or node" ;;
  esac
  # USR1 is for the shell of the job alone (B:), which then ends the processes in good order.
  words=(sbatch --job-name="$name" --nodes="$nodes" --gpus-per-node="$gpus"
    --ntasks-per-node="$processes" --signal=B:USR1@120 --requeue --open-mode=append
    --output=runs/slurm-%j.log "${more[@]}" launch/slurm.sh job "$gpus" "${@:2}")
  if [[ $dry_run ]]; then
    printf '%q ' "${words[@]}"
    echo
    return
  fi
  if ! command -v sbatch > /dev/null; then
    fail "sbatch is not here: call this where jobs are submitted"
  fi
  if [[ ! -x .venv/bin/python ]]; then fail "no .venv here: launch/environment.sh makes it"; fi
  mkdir -p runs
  "${words[@]}"
}

# What runs on the first node of the job: job GPUS COMMAND.
job() {
  local gpus=$1 step status=0 time_is_over="" again
  shift
  cd "$SLURM_SUBMIT_DIR"  # Slurm runs a copy of this file that lies elsewhere
  export JAX_NUM_PROCESSES=auto PATH=$PWD/.venv/bin:$PATH
  if ((SLURM_NTASKS_PER_NODE == 1)); then
    # Without it JAX gives a process the one GPU that has its number on the node.
    JAX_LOCAL_DEVICE_IDS=$(seq --separator=, 0 $((gpus - 1)))
    export JAX_LOCAL_DEVICE_IDS
  fi
  # Before the processes start, for a signal that comes as soon as they do. Where Slurm ends the job
  # by itself, it sends TERM to the processes too, and this shell has only to wait until they have saved.
  trap 'time_is_over=yes; ask_to_save' USR1
  trap ask_to_save TERM
  # The processes of a node choose their GPU by themselves, so each has to see all of them. Of a
  # session of its own: `scancel --full` signals the process group of this shell.
  setsid srun --kill-on-bad-exit=1 --gpu-bind=none "$@" &
  step=$!
  # A trapped signal ends a wait, not the processes, which are still saving.
  while kill -0 "$step" 2> /dev/null; do wait "$step" || true; done
  wait "$step" || status=$?
  again=$(why_again "$time_is_over") || true
  if [[ $again ]]; then
    echo "back into the queue: $again" >&2
    scontrol requeue "$SLURM_JOB_ID"
  fi
  exit "$status"
}

# srun itself answers TERM by killing the processes: `_srun_signal_mgr` of its srun_job.c. To a job
# that Slurm is ending, scancel would try for minutes to send a signal.
ask_to_save() {
  if [[ $(shown) == *" JobState=RUNNING "* ]]; then
    scancel --signal=TERM "$SLURM_JOB_ID" || true
  fi
}

# What the controller knows of the job.
shown() {
  scontrol show --oneliner job "$SLURM_JOB_ID"
}

# Why a job must run again whose command has ended, if it must. For a lost node srun waits until Slurm
# has noticed it, and puts the job back into the queue.
why_again() {
  local time_is_over=$1 job
  job=$(shown)
  if [[ $job != *" JobState=RUNNING "* ]]; then
    return  # Slurm is ending it, and knows whether it runs again
  elif [[ $job != *" PreemptTime=None "* ]]; then
    # In a partition with a GraceTime only the processes get a signal, and a job that ends in that
    # time is taken for done.
    echo "it is preempted"
  elif [[ $time_is_over ]]; then
    echo "its time is nearly over"
  fi
}

logs() {
  tail -n 50 -F "runs/slurm-$1.log"
}

# A signal that has a name goes to the processes and not to the shell: they save, and the job ends.
# A job that does not run has nothing to save.
cancel() {
  if [[ $(squeue --noheader --format=%T --jobs="$1") == RUNNING ]]; then
    scancel --signal=TERM "$1"
  else
    scancel "$1"
  fi
}

case ${1:-} in
  -h | --help) cd "$(dirname "$0")/.." && help ;;
  submit) cd "$(dirname "$0")/.." && "$@" ;;
  job) "$@" ;;
  logs | cancel)
    if [[ ! ${2:-} =~ ^[0-9]+$ ]]; then fail "$1 JOB: the number that sbatch printed"; fi
    cd "$(dirname "$0")/.." && "$@"
    ;;
  *) fail "launch/slurm.sh ${1:-}: choose from submit logs cancel" ;;
esac
