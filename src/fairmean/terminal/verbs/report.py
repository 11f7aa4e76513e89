"""``fairmean report``: one HTML file about runs or a study, and figures and tables for a paper."""

from __future__ import annotations

import argparse
from typing import Any

from fairmean.terminal.words import parser_for, split, takes_directory, takes_json

_ABOUT = """\
Write a report about a study or about runs: one HTML file that opens in any browser, needs no network, and can be sent
to a colleague as it is. The same figures are made for a paper with --figures, and the table with --latex."""
_EXAMPLES = (
    "fairmean report demo                                    the study in runs/demo, as report.html",
    "fairmean report 3f2a 91bc -o two.html                   two runs, by beginnings of their hashes",
    "fairmean report demo --figures figures --latex table.tex",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "report", "one HTML file about a study or about runs", _ABOUT, _EXAMPLES)
    what = "a study by its name, folder or table; or runs by their folders or beginnings of their hashes"
    parser.add_argument("runs", nargs="+", metavar="STUDY | RUN", help=what)
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--figures", metavar="FOLDER", help="also write the figures, as SVG, PDF and PNG")
    also = "also write the table for LaTeX (booktabs), to a file or, without one, to standard output"
    parser.add_argument("--latex", nargs="?", const="-", metavar="FILE", help=also)
    shown = "what the LaTeX table shows beside means: interval, significance, or none; default: both"
    parser.add_argument("--latex-with", default="interval,significance", metavar="LIST", help=shown)
    takes_directory(parser)
    takes_json(parser)
    parser.set_defaults(call=_report)


def _report(arguments: argparse.Namespace) -> int:
    from fairmean.report import collect, gather, html, save
    from fairmean.report.latex import latex

    data = collect(gather(arguments.runs, arguments.dir))
    written = {"report": str(save(html(data), arguments.output))}
    said = [f"report: {written['report']} (open it in a browser)"]
    if arguments.figures is not None:
        from fairmean.report.figures import write_figures

        files = write_figures(data, arguments.figures)
        written["figures"] = arguments.figures
        said.append(f"figures: {len(files)} files in {arguments.figures}")
    if arguments.latex is not None:
        parts = split("--latex-with", arguments.latex_with, "interval,significance") or []
        table = latex(data, [] if parts == ["none"] else parts)
        if arguments.latex == "-":
            written["latex"] = table
            said.append(table.rstrip())
        else:
            written["latex"] = str(save(table, arguments.latex))
            said.append(f"table: {arguments.latex}")
    if arguments.json:
        from fairmean.experiments.folder import to_json

        print(to_json({**written, "finding": data["finding"]["headline"]}))
        return 0
    print("\n".join([data["finding"]["headline"], *said]))
    return 0
