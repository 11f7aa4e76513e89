"""Sources are tried in order, fail in one line, and never pass on half a file."""

from __future__ import annotations

import http.server
import subprocess
import threading
from typing import Any

import pytest

from fairmean.data import sources
from fairmean.errors import UserError


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves 3 MB, or half of it when asked for /cut."""

    def do_GET(self):
        body = bytes(3_000_000)
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path.startswith("/cut") else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def site():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def lines():
    return []


def run(source, lines, read=lambda place: place.read_bytes(), download=True):
    return sources.acquire("toy", [source], read, download, lines.append)


def test_download_says_how_far_it_is(site, lines):
    assert len(run(sources.official(f"{site}/whole.gz"), lines)) == 3_000_000
    assert lines[-1] == "whole.gz: 100 % of 3.0 MB"
    assert len(lines) > 2


def test_several_files_are_read_as_a_folder(site, lines):
    def names(place):
        return sorted(p.name for p in place.iterdir())

    assert run(sources.official(f"{site}/a", f"{site}/b"), lines, names) == ["a", "b"]


@pytest.mark.parametrize(
    ("page", "why"), [("cut/file", "file was cut off after 1500000 of 3000000 bytes"), ("missing", "404")]
)
def test_failed_download(site, lines, page, why):
    with pytest.raises(UserError, match=rf"^cannot get toy \(official files at .*{why}.*data\.path$"):
        run(sources.official(f"{site}/{page}"), lines)


def test_no_network(lines, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refused)
    with pytest.raises(UserError, match="Name or service not known"):
        run(sources.official("http://nowhere.invalid/file"), lines)


def test_the_next_source_is_tried_when_one_has_bad_content(tmp_path, lines):
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
    chain = [sources.installed(str(tmp_path / name)) for name in ("absent", "bad", "good")]

    def read(place) -> Any:
        if place.name == "bad":
            raise UserError("does not match")
        return place.name

    got: Any = sources.acquire("toy", chain, read, False, lines.append)
    assert got == "good"
    assert lines[1].endswith("absent: not installed")
    assert lines[3].endswith("bad: does not match")


def test_nothing_online_is_tried_without_download(lines):
    with pytest.raises(UserError, match=r"cannot get toy \(downloads are switched off\): name a folder"):
        run(sources.official("http://nowhere.invalid/file"), lines, download=False)
    assert lines == []


class Programs:
    """Stands in for subprocess.run: writes what a program would, or fails as it would."""

    def __init__(self, files=(), errors=""):
        self.files, self.errors, self.commands = files, errors, []

    def __call__(self, command, cwd, **kwargs):
        self.commands.append(command)
        for file in self.files:
            (cwd / file).mkdir(parents=True) if file.endswith("/") else (cwd / file).write_bytes(b"packed")
        self.files = ()
        return subprocess.CompletedProcess(command, 100 if self.errors else 0, "", self.errors)


@pytest.fixture
def programs(monkeypatch):
    def install(which=("apt-get", "dpkg-deb", "npm"), **kwargs):
        stand_in = Programs(**kwargs)
        monkeypatch.setattr("subprocess.run", stand_in)
        monkeypatch.setattr("shutil.which", lambda name: name if name in which else None)
        return stand_in

    return install


DEBIAN = sources.debian("dataset-toy", "/usr/share/toy")
NPM = sources.npm("toy@1.0.0")


def test_debian_downloads_and_unpacks(programs, lines):
    ran = programs(files=["dataset-toy_1_all.deb", "unpacked/usr/share/toy/"])
    assert run(DEBIAN, lines, lambda place: place.is_dir())
    assert [command[0] for command in ran.commands] == ["apt-get", "dpkg-deb"]


def test_npm_packs(programs, lines):
    ran = programs(files=["toy-1.0.0.tgz"])
    assert run(NPM, lines) == b"packed"
    assert ran.commands[0][:3] == ("npm", "pack", "toy@1.0.0")


@pytest.mark.parametrize(
    ("source", "setup", "why"),
    [
        (DEBIAN, {"which": ()}, "apt-get is not installed"),
        (DEBIAN, {"errors": "E: Unable to locate package dataset-toy\n"}, "'apt-get update' fills them"),
        (DEBIAN, {"errors": "W: noise\nE: No space\n"}, "apt-get failed with 100 E: No space"),
        (DEBIAN, {}, r"expected one \*\.deb, got 0"),
        (NPM, {"which": ("apt-get",)}, "npm is not installed"),
        (
            NPM,
            {"errors": "npm warn x\nnpm error code ENOTFOUND\n"},
            "npm failed with 100 npm error code ENOTFOUND",
        ),
    ],
)
def test_package_clients_that_fail(programs, lines, source, setup, why):
    programs(**setup)
    with pytest.raises(UserError, match=why) as caught:
        run(source, lines)
    assert "\n" not in str(caught.value)
