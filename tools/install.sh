#!/usr/bin/env bash
# Install this checkout into an environment, and show how far the compiler is. Everything else goes to build/install.log.
# usage: tools/install.sh PYTHON REQUIREMENT        for example .venv/bin/python '.[test]'
set -euo pipefail
cd "$(dirname "$0")/.."
log=build/install.log
mkdir -p build

show_progress() {
  local line end=$'\n' every=10
  [ -t 1 ] && end=$'\r' every=1
  while IFS= read -r line; do
    if [[ $line =~ \[([0-9]+)/([0-9]+)\]\ (Building|Linking) ]] && ((BASH_REMATCH[1] % every == 0)); then
      printf 'Compiling the kernels: %s of %s%s' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$end"
    fi
  done
  [ -t 1 ] && printf '\033[K'
  return 0
}

name=octavo${2#.}
echo "Installing $name (the first time this takes some minutes, most of it compiling)"
# No build isolation, and a build directory of its own: the compiled objects are then reused by the next install.
options=(--verbose --no-build-isolation --config-settings 'build-dir=build/make-{wheel_tag}')
if ! "$1" -m pip install "${options[@]}" "$2" 2>&1 | tee "$log" | show_progress; then
  tail -n 40 "$log" >&2
  echo "Installing $name failed: the end of $log is above" >&2
  exit 1
fi
