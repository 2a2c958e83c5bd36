#!/usr/bin/env bash
# Build the native modules with sanitizers and run on them the tests that they are for: `address`, with undefined behaviour, on
# kernels, programs and weights; `thread` on what runs on several threads.
# usage: PYTHON=path/to/python tools/sanitize.sh address|thread [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?address or thread}
shift
case $kind in
  address) sanitizers=address,undefined libraries="libasan.so libubsan.so" tests=(tests/kernels tests/program tests/weights) ;;
  # One ISA level: what threads do is the same on all.
  thread)
    sanitizers=thread libraries=libtsan.so
    tests=(tests/kernels/test_{thread_pool,packing,pack,peak_loops}.py tests/native tests/program -k "not generic")
    ;;
  *) echo "address or thread, not $kind" >&2 && exit 2 ;;
esac
python=$(command -v "${PYTHON:-python3}")
PATH="$(dirname "$python"):$PATH"
build=build/sanitize-$kind
cmake -S . -B "$build" -G Ninja -DPython_EXECUTABLE="$python" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DOCTAVO_SANITIZE=$sanitizers >/dev/null
cmake --build "$build"
rm -rf "$build/site"
mkdir -p "$build/site"
cp -r src/octavo "$build/site/"
cmake --install "$build" --prefix "$build/site" >/dev/null  # last: replaces modules that were built into the source tree
# Python itself is not instrumented: its own leaks are not ours to report, nor are numpy's threads, whose locks are not seen.
preload=$(for library in $libraries libstdc++.so; do g++ -print-file-name=$library; done)
export LD_PRELOAD="${preload//$'\n'/ }" OPENBLAS_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TSAN_OPTIONS=halt_on_error=1
PYTHONPATH="$build/site" "$python" -m pytest "${tests[@]}" -p no:cacheprovider --capture=sys "$@"
