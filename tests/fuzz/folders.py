"""Damaged run folders: the same command again, or 'check'."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import torch

import fairmean
from fairmean.terminal.main import main
from tests.fuzz.case import SETTINGS, TINY, Case, Content, tiny, write

Change = Callable[[Path], None]
WATCHED = [*TINY, "theory=true"]


def _interrupt(progress: Any) -> None:
    if progress.round == 2:
        raise KeyboardInterrupt


@functools.cache
def made(how: str) -> Mapping[str, bytes]:
    """The files of a run, by their paths: 'finished', 'interrupted', or both of them 'watched' with theory=true."""
    with tempfile.TemporaryDirectory() as place, chdir(place):
        write(Path(place), {"tiny.npz": tiny()})
        watched: dict[str, Any] = {"theory": True} if "watched" in how else {}
        if "interrupted" in how:
            with suppress(KeyboardInterrupt):
                fairmean.run(report=_interrupt, **SETTINGS, **watched)
        else:
            with redirect_stdout(io.StringIO()):
                assert main(["run", *(WATCHED if watched else TINY)]) == 0
        files = {str(file.relative_to(place)): file.read_bytes() for file in Path(place).rglob("*") if file.is_file()}
    assert any(name.endswith("checkpoint.pt") for name in files), files.keys()
    return files


def run_folder(folder: Path) -> Path:
    """The one run there."""
    (config,) = folder.glob("runs/*/*/config.toml")
    return config.parent


def damaged(how: str, change: Change, argv: list[str] | None = None) -> Callable[[Path], list[str]]:
    """Make a run, change its folder; RUN among the arguments is that folder."""

    def prepare(folder: Path) -> list[str]:
        write(folder, made(how))
        place = run_folder(folder)
        change(place)
        again = ["run", *(WATCHED if "watched" in how else TINY)]
        return [str(place.relative_to(folder)) if word == "RUN" else word for word in argv or again]

    return prepare


def put(name: str, content: Content) -> Change:
    """Replace a file."""
    return lambda place: write(place, {name: content})


def lose(name: str) -> Change:
    """Delete a file."""
    return lambda place: (place / name).unlink()


def cut(name: str, keep: float) -> Change:
    """Keep this part of a file."""

    def change(place: Path) -> None:
        os.truncate(place / name, int(keep * (place / name).stat().st_size))

    return change


def into_folder(name: str) -> Change:
    """Put a folder in the place of a file."""

    def change(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        (place / name).mkdir()

    return change


def checkpoint(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the checkpoint in place."""

    def change(place: Path) -> None:
        kept = torch.load(place / "checkpoint.pt", weights_only=True)
        edit(kept)
        torch.save(kept, place / "checkpoint.pt")

    return change


def instead(value: Any) -> Change:
    """Save something else in the place of the checkpoint."""
    return lambda place: torch.save(value, place / "checkpoint.pt")


def summary(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the summary."""

    def change(place: Path) -> None:
        kept = json.loads((place / "summary.json").read_text())
        edit(kept)
        (place / "summary.json").write_text(json.dumps(kept))

    return change


def _folder(name: str, how: str, change: Change, *says: str, argv: list[str] | None = None, **more: Any) -> Case:
    return Case("folder", name, damaged(how, change, argv), says=says, **more)


def handwritten() -> Iterator[Case]:
    """Each for a reason of its own."""
    yield from _trial()
    yield from _checkpoints()
    yield from _tables()
    yield from _summaries()
    yield from _configs()
    yield from _check()


def _trial() -> Iterator[Case]:
    trial: dict[str, Any] = {"trial": True}
    where = ("checkpoint.pt",)
    yield _folder("checkpoint half there", "interrupted", cut("checkpoint.pt", 0.5), *where, **trial)
    yield _folder("checkpoint garbage", "interrupted", put("checkpoint.pt", b"garbage"), *where, **trial)
    yield _folder("checkpoint empty", "interrupted", put("checkpoint.pt", b""), *where, **trial)
    size = checkpoint(lambda kept: kept.update(w=kept["w"].repeat(2)))
    yield _folder("checkpoint of a larger model", "interrupted", size, *where, **trial)
    yield _folder("clients.csv.part lost", "interrupted", lose("clients.csv.part"), "clients.csv", **trial)
    yield _folder("clients.csv.part short", "interrupted", cut("clients.csv.part", 0.5), "clients.csv", **trial)
    for text in ("{}", "[]", "null"):
        yield _folder(f"summary {text}", "finished", put("summary.json", text), "summary.json", **trial)
    no_metrics = summary(lambda kept: [kept.pop(key) for key in ("average", "worst")])
    found = frozenset({0})  # they follow from the accuracies that the summary holds
    yield _folder("summary without metrics", "finished", no_metrics, codes=found, table=("average",), **trial)
    yield _folder("summary a folder", "finished", into_folder("summary.json"), "summary.json", **trial)
    yield _edited("config.toml edited", "finished", b"seed = 1", b"seed = 77", **trial)
    lost = lose("theory.csv")
    yield _folder(
        "theory.csv lost", "watched", lost, "theory.csv", argv=["check", "RUN"], never=("without theory",), **trial
    )


def _checkpoints() -> Iterator[Case]:
    def kept(name: str, edit: Callable[[dict[str, Any]], Any], how: str = "interrupted") -> Case:
        return _folder(f"checkpoint {name}", how, checkpoint(edit), "checkpoint.pt")

    yield kept("of a smaller model", lambda kept: kept.update(w=kept["w"][:3].clone()))
    yield kept("with one parameter", lambda kept: kept.update(w=kept["w"][:1].clone()))
    yield kept("without parameters", lambda kept: kept.pop("w"))
    yield kept("with nothing as parameters", lambda kept: kept.update(w=None))
    yield kept("with NaN parameters", lambda kept: kept.update(w=kept["w"] * float("nan")))
    yield kept("with a list as parameters", lambda kept: kept.update(w=kept["w"].tolist()))
    yield kept("without a round", lambda kept: kept.pop("round"))
    yield kept("with a text as round", lambda kept: kept.update(round="two"))
    yield kept("of round -1", lambda kept: kept.update(round=-1))
    yield kept("of round 99 of 4", lambda kept: kept.update(round=99))
    yield kept("without a state", lambda kept: kept.pop("state"))
    yield kept("with a list as state", lambda kept: kept.update(state=[1]))
    yield kept("without tables", lambda kept: kept.pop("tables"))
    yield kept("with a list of tables", lambda kept: kept.update(tables=["clients.csv"]))
    yield kept("with no length of a table", lambda kept: kept.update(tables={"clients.csv": None}))
    yield kept("with a negative length", lambda kept: kept.update(tables={"clients.csv": -5}))
    yield kept("of another table", lambda kept: kept.update(tables={"../../../tiny.npz": 1}))
    for name, value in (
        ("{}", {}),
        ("a list", [1, 2]),
        ("a tensor", torch.zeros(21)),
        ("nothing", None),
        ("a model", torch.nn.Linear(2, 2)),
    ):
        yield _folder(f"checkpoint that is {name}", "interrupted", instead(value), "checkpoint.pt")
    yield kept("of a watched run without its sums", lambda kept: kept.pop("running"), "interrupted watched")
    yield _folder("checkpoint a folder", "interrupted", into_folder("checkpoint.pt"), "checkpoint.pt")
    yield _folder("checkpoint the data", "interrupted", put("checkpoint.pt", tiny()), "checkpoint.pt")
    yield _folder("checkpoint a pickle", "interrupted", put("checkpoint.pt", b"\x80\x04K\x05."), "checkpoint.pt")


def _tables() -> Iterator[Case]:
    part = "clients.csv.part"
    yield _folder("clients.csv.part empty", "interrupted", put(part, b""), "clients.csv")
    yield _folder("clients.csv.part one byte short", "interrupted", cut(part, 0.999), "clients.csv")
    yield _folder("clients.csv.part a folder", "interrupted", into_folder(part), "clients.csv")
    watched = "interrupted watched"
    yield _folder("theory.csv.part lost", watched, lose("theory.csv.part"), "theory.csv")
    yield _folder("theory.csv.part short", watched, cut("theory.csv.part", 0.5), "theory.csv")
    yield _folder("lock a folder", "interrupted", into_folder("lock"), "runs/")


def _summaries() -> Iterator[Case]:
    def text(name: str, content: Content) -> Case:
        return _folder(f"summary {name}", "finished", put("summary.json", content), "summary.json")

    def changed(name: str, edit: Callable[[dict[str, Any]], Any]) -> Case:
        return _folder(f"summary {name}", "finished", summary(edit), "summary.json")

    yield text("a number", "3")
    yield text("a text", '"finished"')
    yield text("empty", "")
    yield text("garbage", b"\x00\xff\xfe garbage")
    yield text("half there", '{"status": "finished", "aver')
    yield text("of status alone", '{"status": "finished"}')
    yield text("of a status that is none", '{"status": "happy"}')
    yield text("diverged nowhere", '{"status": "diverged"}')
    yield text("lists 100,000 deep", "[" * 100_000)
    yield changed("without status", lambda kept: kept.pop("status"))
    yield changed("with a text as average", lambda kept: kept.update(average="much"))
    yield changed("with a list as average", lambda kept: kept.update(average=[1.0]))
    yield changed("without accuracies", lambda kept: kept.pop("accuracy"))
    yield changed("with nothing as accuracies", lambda kept: kept.update(accuracy=None))
    yield changed("with too few accuracies", lambda kept: kept.update(accuracy=kept["accuracy"][:1]))
    yield changed("with texts as accuracies", lambda kept: kept.update(accuracy=["a"] * 4))
    yield changed("without regular clients", lambda kept: kept.pop("regular"))

    def compared(name: str, change: Change, **more: Any) -> Case:
        def prepare(folder: Path) -> list[str]:
            argv = ["compare", *TINY, "--methods", "mean,fedavg", "--attacks", "none"]
            write(folder, {"tiny.npz": tiny()})
            with redirect_stdout(io.StringIO()):
                assert main(argv) == 0
            change(sorted(folder.glob("runs/compare/*/summary.json"))[0].parent)
            return argv

        more = {"says": ("summary.json",), "table": ()} | more
        return Case("folder", f"summary {name} in a comparison", prepare, **more)

    yield compared("{}", put("summary.json", "{}"))
    yield compared("garbage", put("summary.json", "garbage"))
    rest = {"codes": frozenset({0}), "says": (), "table": ("mean", "fedavg")}  # it follows from the accuracies
    yield compared("without average", summary(lambda kept: kept.pop("average")), **rest)


def _edited(name: str, how: str, old: bytes, new: bytes, **more: Any) -> Case:
    """The run is found again by what it is; its config is put right."""

    def edit(place: Path) -> None:
        file = place / "config.toml"
        assert old in file.read_bytes()
        file.write_bytes(file.read_bytes().replace(old, new))

    def mended(folder: Path) -> list[str]:
        (right,) = (content for file, content in made(how).items() if file.endswith("config.toml"))
        same = (run_folder(folder) / "config.toml").read_bytes() == right
        return [] if same else ["config.toml still says something else than what was run"]

    return _folder(name, how, edit, after=mended, codes=frozenset({0}), table=(), **more)


def _configs() -> Iterator[Case]:
    yield _edited("config.toml edited, run interrupted", "interrupted", b"seed = 1", b"seed = 77")
    yield _edited("config.toml no TOML any more", "finished", b"[train]", b"[train")
    yield _edited("config.toml of NUL bytes", "finished", b"seed", b"\x00\x00")


def _check() -> Iterator[Case]:
    def check(name: str, change: Change, *says: str, how: str = "watched", **more: Any) -> Case:
        return _folder(f"check: {name}", how, change, *says, argv=["check", "RUN"], **more)

    def nothing(place: Path) -> None:
        pass

    yield check("a run without theory", nothing, "theory=true", how="finished")
    yield check("theory.json lost", lose("theory.json"), "theory.json")
    for text in ("{}", "[]", "null", "garbage", "3"):
        yield check(f"theory.json {text}", put("theory.json", text), "theory.json")
    yield check("theory.json a folder", into_folder("theory.json"), "theory.json")
    yield check("theory.csv empty", put("theory.csv", b""), "theory.csv")
    yield check("theory.csv garbage", put("theory.csv", b"\x00\xff\xfe"), "theory.csv")
    yield check("theory.csv of another table", put("theory.csv", b"a,b\n1,2\n"), "theory.csv")
    yield check("theory.csv of words", put("theory.csv", b"round,objective\none,two\n"), "theory.csv")
    yield check("theory.csv a folder", into_folder("theory.csv"), "theory.csv")

    def header_only(place: Path) -> None:
        table = place / "theory.csv"
        table.write_bytes(table.read_bytes().splitlines(keepends=True)[0])

    def column_lost(place: Path) -> None:
        table = place / "theory.csv"
        table.write_text("\n".join(line.partition(",")[2] for line in table.read_text().splitlines()))

    yield check("theory.csv without rounds", header_only, "theory.csv")
    yield check("theory.csv without its first column", column_lost, "theory.csv")
    yield check("a folder that was emptied", _empty, "runs/")


def _empty(place: Path) -> None:
    shutil.rmtree(place)
    place.mkdir()


def drawn(draw: random.Random) -> Case:
    """A file of a run cut or overwritten at some place."""
    how, name = draw.choice(
        [
            ("interrupted", "checkpoint.pt"),
            ("interrupted", "clients.csv.part"),
            ("finished", "summary.json"),
            ("interrupted watched", "checkpoint.pt"),
            ("interrupted watched", "theory.csv.part"),
        ]
    )
    says = name.removesuffix(".part")
    part = draw.uniform(0.01, 0.98)
    if name.endswith(".part") or draw.random() < 0.6:
        return _folder(f"{name} cut at {part:.4f}, {how}", how, cut(name, part), says)
    noise = draw.randbytes(draw.randrange(1, 2000))
    return _folder(f"{name} {len(noise)} bytes of noise, {how}", how, put(name, noise), says)
