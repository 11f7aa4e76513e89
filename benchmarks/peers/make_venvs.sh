#!/bin/sh
# Makes .venvs/<peer> for each peer named (all five without arguments); one that is up to date is left alone.
#
# <peer>.txt is installed with its dependencies, <peer>-nodeps.txt, where there is one, without.
# Each pins torch==2.13.0, so that nothing a peer asks for can bring another torch. PYTHON says which python to use.
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- byzfl pfl fluke fedlab flower
for peer in "$@"; do
    venv=.venvs/$peer
    wanted=$(cat "$peer.txt" "$peer-nodeps.txt" 2>/dev/null || cat "$peer.txt")
    [ "$(cat "$venv/stamp" 2>/dev/null)" = "$wanted" ] && continue
    echo "making $venv"
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    pip="$venv/bin/python -m pip --quiet --disable-pip-version-check install"
    $pip --requirement "$peer.txt"
    [ ! -f "$peer-nodeps.txt" ] || $pip --no-deps --requirement "$peer-nodeps.txt"
    printf '%s\n' "$wanted" >"$venv/stamp"
done
