"""The notebooks in examples/ run from top to bottom, and show what they say."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from torch import nn

EXAMPLES = Path(__file__).parent.parent / "examples"


def executed(file):
    """The variables of a notebook after all its cells; a cell that fails is named."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # what is shown is what was computed here, and nothing stored
            exec(compile("".join(cell["source"]), f"{file.name}, cell {number}", "exec"), names)
    return names


def test_quickstart(here, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    names = executed(EXAMPLES / "quickstart.ipynb")
    out = capsys.readouterr().out
    assert "fairmean-split" in out
    assert out.count("wrong labels") in (0, 2)  # none where the worst run is one without attack
    assert isinstance(names["model"], nn.Module)
    assert names["run"].evaluate(names["model"]) == pytest.approx(names["run"].accuracy)
    assert names["worst"]["worst"] == min(record["worst"] for record in names["comparison"].records)
    bars = names["axes"].patches
    assert len(bars) == 4 * 10
    assert [bar.get_hatch() for bar in bars[:10]].count("///") == 2
    heights = [bar.get_height() for bar in bars[-10:]]
    assert heights == pytest.approx(list(names["result"].accuracy))
    names["figure"].savefig(here / "clients.png")
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_every_notebook_parses(file):
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))


def test_mislabelled_site(here, capsys):
    names = executed(EXAMPLES / "mislabelled_site.ipynb")
    verdicts = {client["client"]: client["verdict"] for client in names["audit"].clients}
    assert verdicts.pop("Ulm") == "contradicted"
    assert verdicts.pop("Trier") == "served badly"
    assert set(verdicts.values()) == {"nothing unusual"}
    assert names["again"].contradicted == []
    assert "Whose labels are contradicted?" in (here / "report.html").read_text(encoding="utf-8")
    assert names["audit"]._repr_html_().count("<circle") == 6
    assert "looks" in capsys.readouterr().out
