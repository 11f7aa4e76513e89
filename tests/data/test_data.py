"""Names, cache and sources together, on tiny stand-ins; and the sample that comes with the package."""

from __future__ import annotations

import numpy as np
import pytest

from fairmean import data
from fairmean.data import formats, sources, store
from fairmean.data.registry import SPECS
from fairmean.errors import UserError

from . import making

pytestmark = pytest.mark.usefixtures("cache")

ARRAYS = making.tiny((5, 5))


@pytest.fixture
def origin(tmp_path):
    return making.write_fashion(tmp_path / "origin", ARRAYS)


@pytest.fixture
def toy(origin, monkeypatch):
    """'fashion-mnist' is a tiny data set, installed in a folder."""
    spec = making.spec(ARRAYS, formats.fashion, sources.installed(str(origin)))
    monkeypatch.setitem(SPECS, "fashion-mnist", spec)
    return "fashion-mnist"


def test_embedded_sample_is_stratified():
    mini = data.load("fashion-mnist-mini")
    assert (mini.train_x.shape, mini.test_x.shape) == ((6000, 28, 28), (1000, 28, 28))
    assert mini.train_x.dtype == np.uint8
    assert mini.train_y.dtype == np.int64
    assert np.bincount(mini.train_y).tolist() == [600] * 10
    assert np.bincount(mini.test_y).tolist() == [100] * 10
    assert len(set(mini.train_y[:30].tolist())) > 3  # shuffled
    assert data.path(mini.name) == data.get(mini.name)
    with pytest.raises(UserError, match=r"leave data\.path out"):
        data.load(mini.name, path="/somewhere")


def test_embedded_licence():
    embedded = SPECS["fashion-mnist-mini"].embedded
    assert embedded is not None
    assert "Copyright (c) 2017 Zalando SE" in embedded.with_name("LICENSE.fashion-mnist").read_text()


def test_get_then_load_from_the_cache(toy, origin, cache):
    lines: list[str] = []
    assert data.get(toy, progress=lines.append) == data.path(toy) == cache / "fashion-mnist.npz"
    assert lines[-1].startswith("fashion-mnist: verified and stored in")
    for file in origin.iterdir():
        file.unlink()
    loaded = data.load(toy)
    assert np.array_equal(loaded.train_x, ARRAYS["x_train"])
    assert loaded.train_y.tolist() == ARRAYS["y_train"].tolist()
    assert data.get(toy) == cache / "fashion-mnist.npz"


def test_load_fills_the_cache(toy, cache):
    loaded = data.load(toy)
    assert loaded.train_x.flags.writeable
    assert [file.name for file in cache.iterdir()] == ["fashion-mnist.npz"]


def test_a_named_folder_comes_first_and_load_leaves_the_cache_alone(toy, origin, tmp_path, cache):
    assert np.array_equal(data.load(toy, path=origin).test_x, ARRAYS["x_test"])
    assert not cache.exists()
    assert data.get(toy, path=str(origin)).exists()
    with pytest.raises(UserError, match="absent is not there"):
        data.load(toy, path=tmp_path / "absent")


def test_a_named_folder_with_other_content_is_refused(toy, tmp_path, cache):
    other = making.write_fashion(tmp_path / "other", ARRAYS | {"y_test": ARRAYS["y_test"] ^ 1})
    with pytest.raises(UserError, match=r"other does not match the published content \(y_test: SHA-256"):
        data.get(toy, path=other)
    assert not cache.exists()


def test_a_corrupted_cache_is_an_error_that_get_mends(toy):
    file = data.get(toy)
    store.save(file, ARRAYS | {"x_test": np.zeros_like(ARRAYS["x_test"])})
    with pytest.raises(UserError, match=r"does not match .*: run 'fairmean data get fashion-mnist' to replace it"):
        data.load(toy)
    lines: list[str] = []
    assert data.get(toy, progress=lines.append) == file
    assert lines[0].endswith("getting it again")
    data.load(toy)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_without_download_nothing_is_fetched(name, monkeypatch):
    monkeypatch.setattr("subprocess.run", None)
    monkeypatch.setattr("urllib.request.urlopen", None)
    monkeypatch.setattr("fairmean.data.sources.Path.is_dir", lambda place: False)
    with pytest.raises(UserError, match=rf"cannot get {name} .*downloads are switched off\): .*data\.path"):
        data.load(name, download=False)
    with pytest.raises(UserError, match=f"run 'fairmean data get {name}'"):
        data.path(name)


def test_unknown_names():
    for call in (data.load, data.get, data.path):
        with pytest.raises(UserError, match="unknown data set 'cifar-10': did you mean 'cifar10'"):
            call("cifar-10")
    with pytest.raises(UserError, match="unknown data set ''"):
        data.load("")


def test_describe(toy):
    rows = {row["name"]: row for row in data.describe()}
    assert list(rows) == ["fashion-mnist-mini", "fashion-mnist", "cifar10"]
    assert rows["fashion-mnist-mini"]["where"] == "embedded"
    assert rows["cifar10"] | {"licence": ""} == {
        "name": "cifar10",
        "train": 50_000,
        "test": 10_000,
        "shape": (32, 32, 3),
        "classes": 10,
        "where": "not downloaded",
        "licence": "",
    }
    file = data.get(toy)
    assert {row["name"]: row["where"] for row in data.describe()}[toy] == str(file)
