"""fairmean reproduce evidence: the page from the stored tables, and one draw of it run again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmean.errors import UserError, unknown
from fairmean.experiments.statistics import MISSING, available
from fairmean.experiments.study import Report
from fairmean.text import columns
from paper import evidence, page, pictures, tuning, words
from paper.command import Say
from paper.evidence import Evidence
from paper.paper import METRICS


def publish(tables: Path, docs: Path, say: Say = print) -> None:
    """docs/evidence.md, its figures and the tables of other pages, from the stored tables.

    Without intervals and tests there are none.
    """
    if not available():
        raise UserError(f"reproduce evidence: {MISSING}")
    tabled = found, mapped, *_ = stored(tables)
    if not found:
        raise UserError(f"'{tables}' holds no evidence-*.csv.gz; name the project's results folder with --tables")
    written = [file for one in found for file in pictures.forest(one, docs / "evidence")]
    written += [file for one in mapped for file in pictures.maps(one, docs / "evidence")]
    (docs / "evidence.md").write_text(page.page(*tabled, "evidence"), encoding="utf-8")
    written += _between("evidence", docs / "which-method.md", short_tables(found))
    written += _between("results", docs.parent / "README.md", page.few(found))
    say("wrote " + ", ".join(map(str, [docs / "evidence.md", *written])))


def stored(tables: Path) -> tuple[list[Evidence], list[Evidence], page.Tuned, str]:
    """The long tables, the maps, the tuning, and what is said of them in words."""
    found, mapped = (
        [evidence.read(file, name) for name in tuning.SETTINGS if (file := tables / f"{kind}-{name}.csv.gz").exists()]
        for kind in ("evidence", "map")
    )
    tuned = {name: tuning.read(f) for name in tuning.SETTINGS if (f := tables / f"tuning-{name}.csv").exists()}
    told = tables / "evidence.txt"
    text = told.read_text(encoding="utf-8").strip() if told.exists() else ""
    return found, mapped, tuned, words.fill(text, found, mapped)


def short_tables(found: Sequence[Evidence]) -> str:
    """What stands in docs/which-method.md."""
    return "\n".join(map(page.headline, found))


def _between(mark: str, file: Path, table: str) -> list[Path]:
    """Write the table between ``<!-- mark -->`` and ``<!-- /mark -->``, where a file has them."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    before, start, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    if not end:
        return []
    file.write_text(before + start + table + end + after, encoding="utf-8")
    return [file]


def draw_again(
    tables: Path,
    dataset: str,
    seed: int,
    methods: Sequence[str] | None,
    attacks: Sequence[str] | None,
    folder: Path,
    overrides: Mapping[str, Any],
    report: Report | None = None,
    say: Say = print,
) -> float:
    """One draw of the evidence from scratch, beside what is stored; the largest difference in points.

    NaN if a run ended in another way than the stored one.
    """
    file = tables / f"evidence-{dataset}.csv.gz"
    if not file.exists():
        raise UserError(f"'{file}': no such table; name the project's results folder with --tables")
    stored = evidence.read(file, dataset)
    for name in methods or ():
        if name not in stored.methods:
            raise unknown("method of the evidence", name, stored.methods)
    if seed not in stored.seeds:
        raise UserError(f"--draw {seed}: the stored draws are {stored.seeds[0]} … {stored.seeds[-1]}")
    known = list(dict.fromkeys(record["attack"] for record in stored.records))
    for name in attacks or ():
        if name not in known:
            raise unknown("attack of the evidence", name, known)
    before = [
        r
        for r in stored.records
        if r["seed"] == seed and (not methods or r["method"] in methods) and (not attacks or r["attack"] in attacks)
    ]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for kept in before:  # what can advance together
        groups.setdefault((kept["dtype"], kept["rounds"], kept["attack"]), []).append(kept)
    rows, largest = [], 0.0
    for (dtype, rounds, attack), group in groups.items():
        settings: dict[str, Any] = {"run.dir": str(folder / "runs"), "train.dtype": dtype, "train.rounds": int(rounds)}
        options: dict[str, Any] = {"seeds": [seed], "attacks": [attack], "report": report}
        specs = {kept["method"]: kept["spec"] for kept in group}
        made = evidence.run(dataset, specs, **options, **settings | dict(overrides))
        found = {record["method"]: record for record in made}
        for kept in group:
            row, difference = _beside(found[kept["method"]], kept)
            rows.append(row)
            largest = float(np.maximum(largest, difference))
    rows.sort(key=lambda row: (stored.methods.index(row[0]), known.index(row[1])))
    say(columns(rows, [f"draw {seed}, now | stored", "attack", *METRICS]))
    differs = "some runs ended otherwise" if math.isnan(largest) else f"{largest:.2f} points"
    say(f"largest difference in average or worst accuracy: {differs}")
    return largest


def _beside(record: Mapping[str, Any], kept: Mapping[str, Any]) -> tuple[list[str], float]:
    """A row now | stored, and the largest difference of average and worst accuracy."""
    row = [kept["method"], kept["attack"]]
    if record["status"] != kept["status"]:
        return [*row, f"{record['status']} | {kept['status']}", "", ""], math.nan
    largest = 0.0
    for metric in METRICS:
        row.append(f"{record[metric]:.2f} | {kept[metric]:.2f}")
        if metric != "variance" and record["status"] == "finished":
            largest = max(largest, abs(record[metric] - kept[metric]))
    return row, largest
