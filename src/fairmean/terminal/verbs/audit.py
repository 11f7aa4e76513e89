"""``fairmean audit``: whose labels are contradicted by the others?"""

from __future__ import annotations

import argparse
from typing import Any

from fairmean.terminal.words import parser_for, settings_of, takes_directory, takes_json, takes_modules

_ABOUT = """\
Say of every client whether its labels as given are contradicted by what all the others have: contradicted, served
badly, too little data to say, or nothing unusual. Models are trained on the other clients alone, and asked about this
one. The answer names the labels that seem to have been mistaken for which, and the samples to look at first.

What is audited is your own data (a table, arrays, a folder), or a run, with the labels that its clients used. The audit
of a run is kept in its folder, and 'fairmean report' then shows it."""
_EXAMPLES = (
    "fairmean audit patients.csv data.target=outcome data.client=site",
    "fairmean audit sites.npz --false-alarms 0.01 --json",
    "fairmean audit 3f2a                                     a run, by a beginning of its hash",
    "fairmean audit patients.csv data.target=outcome data.client=site model.name=linear --csv > sites.csv",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "audit", "whose labels are contradicted by the others?", _ABOUT, _EXAMPLES)
    what = "data (a file, a folder or a name), a run (its folder or a beginning of its hash) or a config, and settings"
    parser.add_argument("settings", nargs="*", metavar="[DATA | RUN | config.toml] [key=value …]", help=what)
    parser.add_argument(
        "--false-alarms", type=float, default=0.05, metavar="RATE",
        help="of clients with nothing wrong, so many may be called contradicted; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--evidence", choices=("auto", "folds", "recess"), default="auto",
        help="train anew on the other clients (folds), or use what a run of fairmean-recess recorded (recess); "
        "default: whichever is sounder for the size",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=int, default=2_000, metavar="N", help="samples of a client, at most; default: %(default)s"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="how often clients are divided anew; default: %(default)s"
    )
    takes_directory(parser)
    takes_json(parser, table=True)
    takes_modules(parser)
    parser.set_defaults(call=_audit)


def _audit(arguments: argparse.Namespace) -> int | None:
    source, overrides = settings_of(arguments.settings)

    from fairmean.experiments.audit import audit
    from fairmean.terminal.progress import Live

    live = Live(arguments.json or arguments.csv)
    try:
        found = audit(
            source,
            false_alarms=arguments.false_alarms,
            evidence=arguments.evidence,
            samples=arguments.samples,
            repeats=arguments.repeats,
            tell=live.line,
            directory=arguments.dir,
            **overrides,
        )
    except KeyboardInterrupt:
        live.clear()
        code: int = arguments.fail("interrupted; nothing was changed, and the same command begins the audit anew", 130)
        return code
    live.clear()
    print(found.to_json() if arguments.json else found.to_csv() if arguments.csv else str(found))
    return None
