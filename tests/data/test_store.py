"""The cache holds whole, verified files or nothing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fairmean.data import store
from fairmean.errors import UserError

from . import making


@pytest.fixture
def arrays():
    return making.tiny((5, 5))


@pytest.fixture
def contents(arrays):
    return making.spec(arrays, None).contents


def test_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("FAIRMEAN_DATA", "/one")
    assert store.folder() == Path("/one")
    monkeypatch.delenv("FAIRMEAN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert store.folder() == Path("/two/fairmean")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert store.folder() == Path("/home/me/.cache/fairmean")


@pytest.mark.parametrize("compress", [True, False])
def test_round_trip_with_the_same_bytes_each_time(tmp_path, arrays, contents, compress):
    for file in ("a.npz", "b.npz"):
        store.save(tmp_path / file, arrays, compress)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = store.load(tmp_path / "a.npz", contents, "-")
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_what_was_there(tmp_path, arrays, monkeypatch, error):
    file = tmp_path / "a.npz"
    store.save(file, arrays)
    before = file.read_bytes()

    def half(stream, **arrays):
        stream.write(b"half")
        raise error

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises((UserError, KeyboardInterrupt), match=r"No space left|^$"):
        store.save(file, arrays)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert file.read_bytes() == before


def test_every_kind_of_corruption_is_found(tmp_path, arrays, contents):
    file = tmp_path / "a.npz"

    def refused(why):
        with pytest.raises(UserError, match=f"^{re.escape(str(file))} .*{why}.*: get it$"):
            store.load(file, contents, "get it")

    refused("is not there")
    for content in (b"", b"noise", b"PK\3\4noise"):
        file.write_bytes(content)
        refused("not a readable .npz")
    store.save(file, arrays)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused("not a readable .npz")
    flipped = bytearray(whole)
    flipped[200] ^= 1
    file.write_bytes(flipped)
    refused("not a readable .npz")
    changed = arrays["x_train"].copy()
    changed[0, 0, 0] ^= 1
    store.save(file, arrays | {"x_train": changed})
    refused("x_train: SHA-256")
    store.save(file, arrays | {"x_train": arrays["x_train"].reshape(-1, 25)})
    refused("x_train: uint8 of shape")
    store.save(file, {"x_train": arrays["x_train"]})
    refused("x_test is missing")
    np.save(tmp_path / "a.npy", arrays["x_train"])
    (tmp_path / "a.npy").rename(file)
    refused("not a readable .npz")


def test_unwritable_cache_names_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAIRMEAN_DATA", str(tmp_path / "file" / "sub"))
    with pytest.raises(UserError, match="set FAIRMEAN_DATA"):
        store.ensure_folder()
