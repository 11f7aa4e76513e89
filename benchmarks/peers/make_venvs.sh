#!/bin/sh
# Makes .venvs/<peer> for each peer named (all five without arguments) from <peer>.txt; one that is up to date is left.
#
# Every requirement is a pin and pip resolves nothing (--no-deps): no package can pull another torch than the CPU build.
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- byzfl pfl fluke fedlab flower
for peer in "$@"; do
    venv=.venvs/$peer
    cmp -s "$peer.txt" "$venv/stamp" && continue
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --requirement "$peer.txt"
    cp "$peer.txt" "$venv/stamp"
done
