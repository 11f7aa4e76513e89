"""``fairmean doctor``: is everything there?"""

from __future__ import annotations

import argparse
import json
from typing import Any

from fairmean.terminal.words import parser_for, takes_directory, takes_json

_ABOUT = """\
Say what this installation has: versions, the device, data sets, whether results can be written, and optional parts.
For everything that is missing, print the command that gets it. The exit code is 1 if something needed is missing."""
_EXAMPLES = (
    "fairmean doctor",
    "fairmean doctor --json",
    "fairmean doctor --dir /scratch/runs                     can results be written there?",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "doctor", "is everything there? what is missing, and how to get it", _ABOUT, _EXAMPLES)
    takes_directory(parser)
    takes_json(parser)
    parser.set_defaults(call=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from fairmean.terminal import doctor

    findings = doctor.examine(arguments.dir)
    whole = all(finding.state != "missing" for finding in findings)
    if arguments.json:
        record = {"ok": whole, "findings": [finding.record() for finding in findings]}
        print(json.dumps(record, indent=1, ensure_ascii=False))
    else:
        print(doctor.page(findings))
    return 0 if whole else 1
