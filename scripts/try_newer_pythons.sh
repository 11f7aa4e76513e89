#!/usr/bin/env bash
# Newer Pythons where they are installed, without PyTorch: the sources compile, and what needs nothing else answers.
set -euo pipefail
cd "$(dirname "$0")/.."
for python in python3.12 python3.13 python3.14 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null || continue
  "$python" -W error -c 'import pathlib; [compile(f.read_text("utf-8"), str(f), "exec") for f in pathlib.Path("src").rglob("*.py")]'
  for words in "--help" "new --all" "list methods"; do
    # shellcheck disable=SC2086
    PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 "$python" -W error -m fairmean $words > /dev/null
  done
  echo "$("$python" --version): the sources compile, and the command line answers"
done
