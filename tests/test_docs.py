"""What the docs show runs as shown."""

import csv
import doctest
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean.experiments.metrics import METRICS
from fairmean.importing import import_module
from fairmean.rules.plugins import load_plugins
from fairmean.terminal.main import _arguments, main

ROOT = Path(__file__).parent.parent
PAGES = {
    str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
    for file in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
}
LINKING = [*PAGES, "results/README.md", "src/fairmean/engine/README.md", "benchmarks/peers/README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page, language):
    return [body for kind, body in FENCE.findall(PAGES[page]) if kind == language]


def commands(page):
    """Every command of a page, as words: lines of its blocks, and what stands in running text and in tables."""
    lines = [line.partition("  #")[0] for body in blocks(page, "") for line in body.splitlines()]
    lines = [re.sub(r"^torchrun .* -m (?=fairmean )", "", line) for line in lines]
    lines += re.findall(r"`(fairmean [a-z][^`\n]*)`", FENCE.sub("", PAGES[page]))
    shown = [line.split()[1:] for line in lines if re.match(r"fairmean [a-z]", line)]
    return [words for words in shown if "…" not in words]


ELSEWHERE = ("docs/your-own-loop.md",)  # needs a process group: tests/torch_room/test_page.py runs its blocks


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page not in ELSEWHERE])
def test_python_blocks_run(page, here, forget_modules, registries, capsys):
    """The blocks of a page are run one after the other, and share their names."""
    space: dict[str, object] = {"__name__": Path(page).stem}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), space)


def test_there_is_something_to_run():
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 15
    assert sum(len(commands(page)) for page in PAGES) >= 50
    for page in PAGES:
        assert not {kind for kind, _ in FENCE.findall(PAGES[page])} - {"", "python", "text", "toml"}, page


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_parse(page, here, own, forget_modules, capsys):
    """Every command that a page shows is one that the program takes; runs are planned, but not started."""
    (here / "mine.npz").write_bytes(Path(own).read_bytes())
    patients = [f"{age},{'north' if age % 3 else 'south'},{'ill' if age % 2 else 'well'}" for age in range(40)]
    (here / "patients.csv").write_text("\n".join(["age,site,outcome", *patients]))
    assert main(["new", "my.toml"]) == 0
    for words in commands(page):
        asks_for_help = len(words) == 1 or "--help" in words  # a verb that is merely named
        if asks_for_help:
            with pytest.raises(SystemExit) as end:
                _arguments([*words, "--help"])
            assert end.value.code == 0, words
        elif words[0] in ("run", "compare") and "--import" not in words:
            elsewhere = ("data.name=fashion-mnist", "data.name=cifar10")  # must be downloaded
            planned = ["partition.min_size=1" if word in elsewhere else word for word in words]
            assert main([*planned, "--dry-run"]) == 0, words
        elif words[0] == "list" and "--import" not in words and "NAME" not in words:
            assert main(words) == 0, words
        else:
            assert _arguments(words).verb == words[0]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_configs_parse(page, here, capsys):
    for block in blocks(page, "toml"):
        if not block.startswith("[project"):
            Path("shown.toml").write_text(block, encoding="utf-8")
            assert main(["compare", "shown.toml", "--dry-run"]) == 0


def anchors(text):
    """The anchors of a page's headings, as GitHub and Forgejo make them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING)
def test_links_resolve(page):
    file = ROOT / page
    text = FENCE.sub("", file.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https:", "http:")):
            continue
        path, _, anchor = target.partition("#")
        linked = (file.parent / path).resolve() if path else file
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text(encoding="utf-8")), target


def test_the_terms_compute_what_they_say():
    """The example of three clients, and FairMean's weights."""
    text = PAGES["docs/terms.md"]
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([\d.]+)[^|]*\|$", text, re.MULTILINE))
    for name, metric in METRICS.items():
        digits = len(rows[name].partition(".")[2])
        assert rows[name] == f"{metric(np.array([90.0, 80.0, 40.0])):.{digits}f}"
    (said,) = re.findall(
        r"losses of 0.25, 1 and 3 have the weights ([\d.]+), ([\d.]+) and ([\d.]+)\.", " ".join(text.split())
    )
    assert [float(weight) for weight in said] == [fairmean.marginal_weight(loss) for loss in (0.25, 1.0, 3.0)]


def test_the_methods_page_is_the_registry():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    make_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_docs)
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == make_docs.page()
    stored = ROOT / "src" / "fairmean" / "terminal" / "catalogue.json"
    assert stored.read_text(encoding="utf-8") == make_docs.stored(), "run python scripts/make_docs.py"


IMPORTS, *BLOCKS = blocks("docs/add-a-method.md", "python")
FILES = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\w+)\.py\n", block))}


def write(here, name):
    (here / f"{name}.py").write_text(IMPORTS + FILES[name], encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_each_part_of_ones_own_is_one_file(name, here, own, forget_modules, registries, capsys):
    """The files of the page work, in the commands that the page shows."""
    write(here, name)
    commands = re.findall(r"^# fairmean (.*)$", FILES[name], re.MULTILINE)
    assert commands
    for command in commands:
        words = command.split()
        if words[0] != "list":
            words += [f"data.name={own}", "train.rounds=4"]
            words += [] if "model.name" in command else ["model.name=linear"]
            words += ["--attacks", "none"] if words[0] == "compare" else []
        assert main(words) == 0, command
        out, err = capsys.readouterr()
        assert err == ""
        assert "†" not in out


def test_the_examples_do_what_they_say(here, own, forget_modules, registries):
    for name in FILES:
        write(here, name)
        import_module(name)
    direction = fairmean.aggregate("worst-half", torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(direction, torch.tensor([0.0, 0.0, 0.5, 0.5]))
    for share, rests in ((0.0, False), (0.99, True)):
        method = {"name": "rested+mean", "share": share}
        result = fairmean.run(data={"name": own}, model={"name": "linear"}, method=method, train={"rounds": 4})
        rows = list(csv.DictReader(result.table.read_text().splitlines()))
        assert {float(row["weight"]) == 0 for row in rows if row["round"] == "1"} == {False, rests}
        assert all(float(row["weight"]) > 0 for row in rows if row["round"] in "02")
    layer, x, out = sys.modules["gain"].Gain(3), torch.randn(5, 3), torch.zeros(2, 3)
    sys.modules["gain"].gain(layer, x, torch.ones(5, 3), [0, 2, 5], [out])
    torch.testing.assert_close(out, torch.stack([x[:2].sum(0), x[2:].sum(0)]))


def test_the_server_by_itself():
    (block,) = (block for block in BLOCKS if block not in FILES.values())
    space: dict[str, object] = {}
    exec(compile(block, "add-a-method.md", "exec"), space)
    assert space["w"].norm() > 0


def test_add_a_method(here, forget_modules, registries, capsys):
    write(here, "worst_half")
    import_module("worst_half")
    result = fairmean.compare(methods=["mean", "worst-half:q=0.8", "fairmean+worst-half"], train={"rounds": 3})
    assert result.methods == ["mean", "worst-half q=0.8", "fairmean+worst-half"]
    assert main(["list", "methods"]) == 0
    assert "worst-half q=0.5" in capsys.readouterr().out
    assert main(["list", "methods", "worst-half"]) == 0
    assert "you, today" in capsys.readouterr().out
    assert str(result).startswith("  ")
    assert "worst-half q=0.8" in str(result)


def test_listen_to_a_run(here, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "listen.md").read_text(), re.DOTALL)
    exec(compile(block, "listen.md", "exec"), {"__name__": "listen"})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "fairmean: 10 clients, rounds 0 to 2"
    assert [line.split(":")[0] for line in said[1:]] == ["round 0", "round 1", "round 2", "finished"]


def test_a_module_that_is_not_there(here, forget_modules, registries, capsys):
    write(here, "worst_half")
    words = ["compare", "--methods", "mean,worst-half", "--attacks", "none", "train.rounds=2", "model.name=linear"]
    assert main([*words, "--import", "worst_halv"]) == 2
    assert "no module 'worst_halv'" in capsys.readouterr().err


def test_another_package_adds_a_method(tmp_path, monkeypatch, registries):
    (tmp_path / "their_rules.py").write_text(
        "from dataclasses import dataclass\nimport fairmean, torch\n"
        "@fairmean.register('theirs', reference='them')\n@dataclass(frozen=True)\n"
        "class Theirs(fairmean.SumRule):\n    'The first client alone.'\n"
        "    def weights(self, round):\n        return torch.eye(len(round.sizes), dtype=torch.float64)[0]\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fairmean.methods]\ntheirs = their_rules\nbroken = no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    with pytest.warns(UserWarning, match=r"plug-in 'broken'"):
        theirs = fairmean.method("theirs")
    torch.testing.assert_close(fairmean.aggregate(theirs, torch.eye(3), torch.ones(3)), torch.eye(3)[0])
    load_plugins.cache_clear()
    monkeypatch.undo()


@pytest.mark.parametrize(
    "name",
    [
        "transform",
        "rules.named",
        "engine.one_round",
        "engine.server",
        "rules.optimisers",
        "experiments.study",
        "experiments.statistics",
        "experiments.choosing",
        "experiments.ladder",
        "experiments.search",
        "rules.search_space",
        "engine.ranks",
        "text",
    ],
)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"fairmean.{name}"))
    assert result.attempted
    assert not result.failed


def test_the_quick_start_from_a_table_to_a_report(here, capsys):
    """Its commands as they stand there, but for fewer rounds."""
    page = "docs/quick-start.md"
    exec(compile(blocks(page, "python")[0], page, "exec"), {})
    show, compare = (words for words in commands(page) if words[0] in ("data", "compare"))
    assert main(show) == 0
    assert all(name in capsys.readouterr().out for name in ("Bonn",))
    assert main([*compare, "train.rounds=3", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "report: report.html" in shown
    assert "labels as given" in shown
    assert "Trier" in Path("report.html").read_text(encoding="utf-8")
