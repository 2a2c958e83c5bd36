#!/usr/bin/env bash
# Build the native modules with AddressSanitizer and UndefinedBehaviorSanitizer and run on them the tests of
# kernels, programs and weights.
# usage: PYTHON=path/to/python tools/sanitize.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${PYTHON:-python3}")
PATH="$(dirname "$python"):$PATH"
build=build/sanitize
cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$python" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOCTAVO_SANITIZE=ON >/dev/null
cmake --build "$build"
rm -rf "$build/site"
mkdir -p "$build/site"
cp -r src/octavo "$build/site/"
cmake --install "$build" --prefix "$build/site" >/dev/null  # last: replaces modules that were built into the source tree
# Python itself is not instrumented: its own leaks are not ours to report.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
PYTHONPATH="$build/site" "$python" -m pytest tests/kernels tests/program tests/weights -p no:cacheprovider "$@"
