#!/usr/bin/env bash
# Makes .venv and installs the pinned dependencies in it: `launch/environment.sh`. `make` calls it.
# PYTHON=python3.12 chooses the interpreter of a new .venv. `launch/environment.sh tools` makes
# build/tools, which builds the documentation and releases, from tools.lock; `... beam` makes build/beam,
# which runs data/filters/clean_pages_beam.py, from beam.lock.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//;p}' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

venv=.venv lock=requirements.lock size=" (3 GB)"
if [[ ${1:-} == tools ]]; then venv=build/tools lock=tools.lock size=""; fi
if [[ ${1:-} == beam ]]; then venv=build/beam lock=beam.lock size=" (1.2 GB)"; fi
finished=$venv/.installed  # newer than the lock (and setup.py): nothing to do
started=$venv/.installing  # still there: the last run was interrupted
log=$venv/install.log

# Exits with a reason where this interpreter will not do. It must parse under any Python.
fits='
import os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit("is Python " + version)
try:
    import ensurepip, venv
except ImportError:
    sys.exit("is Python %s without its venv module (Debian, Ubuntu: apt install python%s-venv)" % (version, version))
if sys.version_info[:2] == (3, 13):  # editdistance, which seqio needs, has no wheel for 3.13
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    paths = os.environ.get("PATH", "").split(os.pathsep)
    compilers = [os.path.join(path, name) for path in paths for name in ("c++", "g++")]
    if not (os.path.exists(header) and any(map(os.path.exists, compilers))):
        sys.exit("is Python 3.13 without a C++ compiler or Python.h (Debian, Ubuntu: apt install g++ python3.13-dev)")
'

find_python() {
  local name reason reasons=""
  for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if ! command -v "$name" > /dev/null; then
      reasons+="  $name is not here"$'\n'
    elif reason=$("$name" -c "$fits" 2>&1); then
      command -v "$name"
      return
    else
      reasons+="  $name ${reason%%$'\n'*}"$'\n'
    fi
  done
  printf 'Python 3.11, 3.12 or 3.13 is needed, and none of these will do:\n%s' "$reasons" >&2
  printf 'Install one, or name it: PYTHON=/path/to/python3.12\n' >&2
  return 1
}

# An install that was cut off may have left half a package: start over (pip has the downloads).
# A .venv that this script did not make is used as it is.
make_venv() {
  local python
  if [[ -e $started ]] || ! "$venv/bin/python" -c '' 2> /dev/null; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version) ($python)"
    rm -rf "$venv"
    mkdir -p "$venv"
    touch "$started"
    "$python" -m venv "$venv"
  fi
  touch "$started"
}

# pip's output as one moving line on a terminal, and as a line for each tenth package elsewhere.
progress() {
  local pinned terminal=0
  pinned=$(grep -c '' "$lock")
  if [[ -t 1 ]]; then terminal=1; fi
  awk -v total="$pinned" -v terminal="$terminal" '
    function show(text) {
      if (terminal) { printf "\r\033[K  %s", substr(text, 1, 76); fflush() }
      else if (text != last) { print "  " text; fflush() }
      last = text
    }
    match($0, /\(line [0-9]+\)/) && /^(Collecting|Processing|Requirement already)/ {
      percent = int(100 * substr($0, RSTART + 6, RLENGTH - 7) / total)
      package = /already/ ? $4 : $2
      sub(/.*\//, "", package)
      if (terminal) show(sprintf("%3d%%  %s", percent, package))
      else show(sprintf("%3d%%", percent - percent % 10))
    }
    /^  Downloading .*MB\)$/ && terminal {
      split($2, wheel, "-")
      show(sprintf("%3d%%  %s-%s %s MB)", percent, wheel[1], wheel[2], $3))
    }
    /^Installing collected packages/ { show("unpacking (a minute or so)") }
    END { if (terminal) printf "\r\033[K" }'
}

pip() {
  "$venv/bin/python" -m pip --disable-pip-version-check "$@" 2>&1
}

install() {
  echo "Installing the packages of $lock$size in $venv, log: $log"
  # The lock is complete, so pip need not search; `pip check` proves that it is.
  if ! { pip install --no-deps --progress-bar off -r "$lock" | tee "$log" | progress &&
    { [[ $venv != .venv ]] ||
      pip install --no-deps --no-build-isolation --quiet --editable . >> "$log"; } &&
    pip check >> "$log"; }; then
    printf '\nThe install failed; run it again once this is mended (whole log: %s):\n' "$log" >&2
    grep -v '^WARNING: Location' "$log" | tail -n 15 >&2
    return 1
  fi
}

start=$SECONDS
rm -f "$finished"
make_venv
install
rm -f "$started"
touch "$finished"
echo "Ready after $((SECONDS - start)) s"
