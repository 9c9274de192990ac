#!/usr/bin/env bash
# Builds the sdist and the wheel of the last commit, and tries the wheel in an environment that has
# nothing else: `make release`. Only files that pass come into dist/; nothing is uploaded.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//;p}' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

tools=build/tools/bin
work=build/release
venv=$work/venv

# The wheel has every file of the package, the sdist also what the wheel is built from.
contents='
import pathlib, sys, tarfile, zipfile
source, dist = map(pathlib.Path, sys.argv[1:])
[wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
package = {path.relative_to(source).as_posix() for path in source.glob("t5x_like/**/*") if path.is_file()}
with zipfile.ZipFile(wheel) as file:
    in_wheel = {name for name in file.namelist() if ".dist-info/" not in name}
with tarfile.open(sdist) as file:
    in_sdist = {name.partition("/")[2] for name in file.getnames()}
needed = package | {"setup.py", "pyproject.toml", "README.md", "LICENSE"}
wrong = sorted(in_wheel ^ package) + sorted(needed - in_sdist)
if wrong or "t5x_like/py.typed" not in package:
    sys.exit(f"{wheel.name} and {sdist.name} lack files of the package, or have others: {wrong}")
print(f"{wheel.name}: {len(in_wheel)} files; {sdist.name}: {len(in_sdist)}")
'

build() {
  rm -rf "$work" dist
  mkdir -p "$work/source" "$work/elsewhere"
  if [[ -n $(git status --porcelain) ]]; then
    echo "Changes that are not committed are left out"
  fi
  git archive HEAD | tar -x -C "$work/source"
  "$tools/python" -m build --outdir "$work/dist" "$work/source" > "$work/build.log" 2>&1 ||
    { tail -n 15 "$work/build.log" >&2 && return 1; }
  "$tools/twine" check --strict "$work"/dist/*
  "$tools/python" -c "$contents" "$work/source" "$work/dist"
}

# With the versions that are tested. No command may need a file of the repository to print its help.
try() {
  local python=$PWD/$venv/bin/python name
  echo "Installing the wheel in $venv"
  "$tools/python" -m venv "$venv"
  "$python" -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
    "$work"/dist/*.whl
  "$python" -m pip check
  cd "$work/elsewhere"
  "$python" -c 'import t5x_like; t5x_like.from_pretrained'
  ../venv/bin/t5x-like --help > help.txt
  for name in $("$python" -c 'from t5x_like import __main__; print(*__main__.COMMANDS)'); do
    ../venv/bin/t5x-like "$name" --help > help.txt
    "$python" -m "t5x_like.$name" --help > help.txt
    echo "t5x-like $name --help: $(grep -c '' help.txt) lines"
  done
  cd - > /dev/null
}

build
try
mkdir dist
cp "$work"/dist/* dist/
printf '%s\n' dist/*
