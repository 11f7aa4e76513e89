"""Writes the completion files of the shells from the command line's parser:  python scripts/make_completions.py

shtab writes what follows from the parser. What it cannot know stands here: the keys of ``key=value`` and their values,
lists of methods and attacks with commas, and the runs that are there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shtab

from fairmean.data.registry import SPECS
from fairmean.experiments.keys import SECTIONS
from fairmean.export import TRACKERS
from fairmean.terminal.catalogue import everything
from fairmean.terminal.main import whole_parser

FOLDER = Path(__file__).parent.parent / "src" / "fairmean" / "terminal" / "completions"
FIXED = {
    "theory": ("true", "false"),
    "data.scale": ("none", "standard"),
    "attack.pick": ("last", "random"),
    "train.schedule": ("exponential", "cosine"),
    "train.device": ("auto", "cpu", "cuda"),
    "train.dtype": ("float32", "float64", "tf32", "bfloat16"),
    "train.engine": ("fast", "reference"),
}
"""Values that stand in no catalogue."""
CATALOGUES = {
    "partition.name": "partitions",
    "attack.name": "attacks",
    "model.name": "models",
    "method.name": "methods",
    "method.scale": "scales",
    "method.aggregator": "aggregators",
    "method.pre": "pre",
    "method.objective": "objectives",
    "server.name": "optimisers",
}
PLACES = ("data.name", "data.path", "run.dir")
"""Keys whose value may be a file or a folder."""
COMPLETERS = {
    "settings": "settings",
    "methods": "methods",
    "attacks": "attacks",
    "runs": "runs",
    "run": "runs",
    "folder": "runs",
    "to": "trackers",
}
"""Arguments by name, and what completes them."""
ELSEWHERE = ("flower",)
"""Verbs whose settings are not ours, but those of a user's app in a folder."""

BASH = r"""
_fairmean_values() {  # $1=key
  case $1 in
@CASES_BASH@
  esac
}

# $1=what has been typed of a list with commas, further arguments: what can stand in it
_fairmean_list() {
  local before=""
  [[ $1 == *,* ]] && before=${1%,*},
  local word=${1##*,}
  shift
  COMPREPLY=($(compgen -P "$before" -W "$*" -- "$word"))
  compopt -o nospace 2>/dev/null
}

_fairmean_runs() {  # $1=what has been typed
  local file
  for file in runs/*/*/config.toml; do
    [[ -e $file ]] || continue
    file=${file%/config.toml}
    file=${file##*/}
    [[ $file == "$1"* ]] && COMPREPLY+=("$file")
  done
  COMPREPLY+=($(compgen -d -- "$1"))
}

_fairmean_settings() {  # $1=what has been typed
  local key=${1%%=*}
  if [[ $1 == *=* ]]; then
    COMPREPLY=($(compgen -P "$key=" -W "$(_fairmean_values "$key")" -- "${1#*=}"))
    case $key in
      @PLACES_BASH@) COMPREPLY+=($(compgen -P "$key=" -f -- "${1#*=}")) ;;
    esac
    return
  fi
  COMPREPLY=($(compgen -S = -W "@KEYS@" -- "$1"))
  (( ${#COMPREPLY[@]} )) && compopt -o nospace 2>/dev/null
  COMPREPLY+=($(compgen -f -X '!*.toml' -- "$1"))
}

_fairmean() {
  # bash parts words at = and :, so the words are taken from the line itself
  local line=${COMP_LINE:0:COMP_POINT} word="" before=""
  local -a words
  read -ra words <<< "$line"
  local last=$(( ${#words[@]} - 1 ))  # older versions of bash count from the front alone
  if [[ $line != *[[:space:]] ]]; then
    word=${words[last]}
    unset "words[last]"
    last=$(( last - 1 ))
  fi
  before=${words[last]}
  if [[ $word == --*=* ]]; then
    before=${word%%=*}
    word=${word#*=}
  fi
  COMPREPLY=()
  case $before in
    --methods) _fairmean_list "$word" @METHODS@ ;;
    --attacks) _fairmean_list "$word" @ATTACKS@ ;;
    --to) COMPREPLY=($(compgen -W "@TRACKERS@" -- "$word")) ;;
    @OPTIONS_BASH@) _shtab_fairmean "$@"; return ;;
    *)
      case "${words[1]} ${words[2]}:$word" in
        *:-*|@CHOICES_BASH@) _shtab_fairmean "$@"; return ;;
        "list methods:"*) COMPREPLY=($(compgen -W "@METHODS@" -- "$word")) ;;
        "list attacks:"*) COMPREPLY=($(compgen -W "@ATTACKS@" -- "$word")) ;;
        "data get:"*|"data path:"*) COMPREPLY=($(compgen -W "@DATA@" -- "$word")) ;;
        @SETTINGS_BASH@) _fairmean_settings "$word" ;;
        @RUNS_BASH@) _fairmean_runs "$word" ;;
        *) _shtab_fairmean "$@"; return ;;
      esac ;;
  esac
  # only what follows the last = or : is replaced on the line
  local prefix="" sign
  for sign in = :; do
    if [[ $COMP_WORDBREAKS == *$sign* && $word == *$sign* ]]; then
      local head=${word%"${word##*$sign}"}
      (( ${#head} > ${#prefix} )) && prefix=$head
    fi
  done
  COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
  [[ ${#COMPREPLY[@]} == 1 && -z ${COMPREPLY[0]} ]] && COMPREPLY=()
}

complete -o default -F _fairmean fairmean
"""

ZSH = r"""
_fairmean_settings() {
  local -a values
  if compset -P '*='; then
    case ${IPREFIX%=} in
@CASES_ZSH@
    esac
    (( $#values )) && compadd -a values
    case ${IPREFIX%=} in
      (@PLACES_BASH@) _files ;;
    esac
    return
  fi
  values=(@KEYS@)
  compadd -S '=' -a values
  _files -g '*.toml'
}

_fairmean_list() {
  compset -P '*,'
  compadd -S '' -- "$@"
}

_fairmean_methods() { _fairmean_list @METHODS@ }

_fairmean_attacks() { _fairmean_list @ATTACKS@ }

_fairmean_trackers() { compadd -- @TRACKERS@ }

_fairmean_runs() {
  local -a found
  found=(runs/*/*/config.toml(N:h:t))
  (( $#found )) && compadd -a found
  _files -/
}
"""

FISH = r"""
function _fairmean_settings
  set -l word (commandline -ct)
  set -l key (string split -m1 = -- $word)
  if test (count $key) -lt 2
    printf '%s=\n' @KEYS@
    __fish_complete_suffix .toml
    return
  end
  switch $key[1]
@CASES_FISH@
  end
  if contains -- $key[1] @PLACES@
    __fish_complete_path $key[2] | string replace -r '^' "$key[1]="
  end
end

function _fairmean_list
  set -l word (string replace -r '^--[a-z]+=' '' -- (commandline -ct))
  set -l before (string replace -r '[^,]*$' '' -- $word)
  for name in $argv
    echo $before$name
  end
end

function _fairmean_methods
  _fairmean_list @METHODS@
end

function _fairmean_attacks
  _fairmean_list @ATTACKS@
end

function _fairmean_trackers
  printf '%s\n' @TRACKERS@
end

function _fairmean_runs
  for file in runs/*/*/config.toml
    string split -r -m2 -f2 / -- $file
  end
  __fish_complete_directories
end
"""


def keys() -> list[str]:
    """Every key that is written on the command line."""
    return [section.dotted(key) for section in SECTIONS for key in section.keys if key.name != "sha256"]


def values() -> dict[str, list[str]]:
    """What a key can be set to, where that is known."""
    catalogue = everything()
    names = {key: [row["name"] for row in catalogue[what]] for key, what in CATALOGUES.items()}
    names["model.name"].insert(0, "auto")
    known = {"data.name": list(SPECS), **names, **{key: list(some) for key, some in FIXED.items()}}
    return {key: [name for name in known[key] if ":" not in name] for key in keys() if key in known}


def verbs_with(root: argparse.ArgumentParser, *names: str) -> list[str]:
    """The verbs that have a positional argument of this name."""
    return [
        verb
        for verb, of_verb in _verbs(root).items()
        if verb not in ELSEWHERE
        and any(not action.option_strings and action.dest in names for action in of_verb._actions)
    ]


def choices_first(root: argparse.ArgumentParser) -> list[str]:
    """The verbs whose first positional argument is one of a few words."""
    first = {verb: next(iter(of_verb._get_positional_actions()), None) for verb, of_verb in _verbs(root).items()}
    return [verb for verb, action in first.items() if action is not None and action.choices]


def options_with_value(root: argparse.ArgumentParser) -> list[str]:
    """Options that take a value which nothing here completes."""
    actions = [action for of_verb in _verbs(root).values() for action in of_verb._actions]
    return sorted(
        {
            option
            for action in actions
            for option in action.option_strings
            if action.nargs != 0 and option not in ("--methods", "--attacks", "--to")
        }
    )


def _verbs(root: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    choices: Any = next(action.choices for action in root._actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)


def filled(template: str, root: argparse.ArgumentParser) -> str:
    """A shell's functions with everything that is known in them."""
    known = values()
    words = {
        "KEYS": _words(keys()),
        "METHODS": _words(known["method.name"]),
        "ATTACKS": _words(known["attack.name"]),
        "DATA": _words(known["data.name"]),
        "TRACKERS": _words(TRACKERS),
        "PLACES": _words(PLACES),
        "PLACES_BASH": "|".join(PLACES),
        "OPTIONS_BASH": "|".join(options_with_value(root)),
        "CHOICES_BASH": "|".join(f'"{verb} :"*' for verb in choices_first(root)),
        "SETTINGS_BASH": "|".join(f'"{verb} "*' for verb in verbs_with(root, "settings")),
        "RUNS_BASH": "|".join(f'"{verb} "*' for verb in verbs_with(root, "runs", "run", "folder")),
        "CASES_BASH": "\n".join(f'    {key}) echo "{_words(some)}" ;;' for key, some in known.items()),
        "CASES_ZSH": "\n".join(f"      ({key}) values=({_words(some)}) ;;" for key, some in known.items()),
        "CASES_FISH": "\n".join(
            f"    case {key}\n      printf '{key}=%s\\n' {_words(some)}" for key, some in known.items()
        ),
    }
    return re.sub(r"@([A-Z_]+)@", lambda match: words[match[1]], template).strip() + "\n"


def _words(some: Iterable[str]) -> str:
    return " ".join(some)


def completion(shell: str) -> str:
    """The completion file of a shell."""
    root = whole_parser()
    for verb, of_verb in _verbs(root).items():
        of_verb.description = None  # the short help is enough
        for action in of_verb._actions:
            if verb in ELSEWHERE and action.dest == "settings":
                action.metavar = action.dest
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.dest in COMPLETERS:
                name = f"_fairmean_{COMPLETERS[action.dest]}"
                action.metavar = action.dest  # zsh takes a colon in it for something else
                action.complete = {"zsh": name, "fish": f"({name})"}  # type: ignore[attr-defined]
    templates = {"bash": BASH, "zsh": ZSH, "fish": FISH}
    functions = filled(templates[shell], root)
    text: str = shtab.complete(root, shell, preamble="" if shell == "bash" else functions)
    if shell == "bash":  # ours is asked first
        text = re.sub(r"^complete .*\n?\Z", "", text.rstrip() + "\n", flags=re.MULTILINE) + functions
    if shell == "zsh":  # as often as one wants, and not once
        text = re.sub(r'^  "\(\*\)::?', '  "*:', text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for shell in ("bash", "zsh", "fish"):
        (FOLDER / f"fairmean.{shell}").write_text(completion(shell), encoding="utf-8")


if __name__ == "__main__":
    main()
