"""The verb 'reproduce': the paper's tables and figures, and the page of many draws."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.progress import Live
from fairmean.terminal.words import parser_for, takes_json

_ABOUT = """\
Run the paper's methods on its own draw, and print ours beside its figures; or make the page of many draws from the
stored tables."""
_EXAMPLES = (
    "fairmean reproduce table2 --quick                       does everything work? some seconds",
    "fairmean reproduce table2                               the paper's second table",
    "fairmean reproduce evidence --draw 1007                 one draw of the evidence, again",
)
WHAT = ("table1", "table2", "fig1", "fig2")
TUNED = ("fashion-mnist", "cifar10")
CHECKOUT = Path(__file__).resolve().parent.parent


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    again = parser_for(verbs, "reproduce", "the paper's tables and figures, ours | paper's", _ABOUT, _EXAMPLES)
    again.add_argument(
        "what", choices=(*WHAT, "all", "evidence"), help="table1: CIFAR-10; evidence: the page of many draws"
    )
    again.add_argument("settings", nargs="*", metavar="key=value", help="as train.device=cpu")
    again.add_argument("--out", default="reproduced", metavar="FOLDER", help="results; default: %(default)s")
    again.add_argument("--quick", action="store_true", help="embedded images, three rounds: does everything work?")
    again.add_argument("--search", action="store_true", help="the whole grids of the calibration, for hours or a GPU")
    again.add_argument("--quiet", action="store_true", help="no progress")
    again.add_argument("--tables", metavar="FOLDER", help="evidence: stored tables; default: results of the checkout")
    again.add_argument("--draw", type=int, metavar="SEED", help="evidence: run this draw again, beside what is stored")
    again.add_argument("--data", default="fashion-mnist", choices=TUNED, help="with --draw; %(default)s")
    again.add_argument("--methods", metavar="A,B", help="with --draw: only these")
    again.add_argument("--attacks", metavar="A,B", help="with --draw: only these")
    takes_json(again)
    again.set_defaults(call=reproduce)


def reproduce(arguments: argparse.Namespace) -> None:
    """Run it. Pages of the documentation are rewritten in this checkout alone, wherever the command is given."""
    if not arguments.json:
        _reproduce(arguments, print)
        return
    said: list[str] = []
    _reproduce(arguments, said.append)
    print(json.dumps({"what": arguments.what, "out": arguments.out, "text": said}, indent=1, ensure_ascii=False))


def _reproduce(arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    from fairmean.terminal.words import settings_of, split
    from paper import command, evidence_command

    source, overrides = settings_of(arguments.settings)
    if source is not None:
        raise UserError(f"'{source}': reproduce has its own settings; change some of them with key=value")
    tables, out = Path(arguments.tables or CHECKOUT / "results"), Path(arguments.out)
    if arguments.what == "evidence" and arguments.draw is None:
        if overrides or arguments.methods or arguments.attacks:
            raise UserError(
                "reproduce evidence: is made from stored tables; settings, --methods and --attacks go with --draw"
            )
        evidence_command.publish(tables, CHECKOUT / "docs", say)
        return
    if arguments.what == "evidence":
        some = split("--methods", arguments.methods, "mean,fairmean"), split("--attacks", arguments.attacks, "none")
        chosen = tables, arguments.data, arguments.draw, *some, out
        with Live(arguments.quiet or arguments.json) as live:
            evidence_command.draw_again(*chosen, overrides, live.study, say)
        return
    if arguments.draw is not None or arguments.methods or arguments.attacks:
        raise UserError(f"reproduce {arguments.what}: --draw, --methods and --attacks are for 'reproduce evidence'")
    for what in WHAT if arguments.what == "all" else (arguments.what,):
        with Live(arguments.quiet or arguments.json) as live:
            options = {"quick": arguments.quick, "search": arguments.search, "report": live.study}
            command.reproduce(what, out, overrides=overrides, say=say, **options)
