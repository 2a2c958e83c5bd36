#!/usr/bin/env bash
# Install the browser that the tests of the dashboard drive: Debian's chromium. Nothing is done where there is one.
# usage: tools/install_browser.sh
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" > /dev/null; then exit 0; fi
done

log=$(mktemp)
root=()
if [ "$(id -u)" != 0 ]; then root=(sudo -n); fi
apt() { "${root[@]}" timeout 600 env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 "$@" >> "$log" 2>&1; }

echo "Installing chromium, for the tests of the dashboard"
if ! { apt update && apt install -y --no-install-recommends chromium fonts-dejavu-core; }; then
  tail -n 20 "$log" >&2
  echo "No browser: chromium could not be installed with apt-get (it needs root and Debian's packages), see above." >&2
  echo "Install chromium or google-chrome by hand. 'make test' alone skips the tests that need one." >&2
  exit 1
fi
