"""Folders of images: classes, clients and splits by their folders; and one line for what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import fairmean
from fairmean import data
from fairmean.data import Columns, own
from fairmean.errors import UserError


def picture(file, shade, size=(5, 4), mode="L"):
    """An image of one shade."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(file)
    return file


@pytest.fixture
def flat(tmp_path):
    """class/…: three classes with five images each; the shade says which."""
    for k, kind in enumerate(("cat", "dog", "owl")):
        for i in range(5):
            picture(tmp_path / kind / f"{i}.png", 10 * k + i)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    picture(tmp_path / ".cache" / "x.png", 0)
    return tmp_path


def test_classes(flat):
    dataset = data.load(str(flat))
    assert (dataset.task, dataset.class_names, dataset.classes) == ("classification", ("cat", "dog", "owl"), 3)
    assert dataset.train_x.shape == (12, 4, 5)
    assert dataset.train_x.dtype == np.uint8
    assert dataset.test_y.tolist() == [0, 1, 2], "each class has one of its five images in the test data"
    for x, y in ((dataset.train_x, dataset.train_y), (dataset.test_x, dataset.test_y)):
        assert (x[:, 0, 0] // 10).tolist() == y.tolist()
    assert dataset.train_clients is None
    assert not dataset.table
    assert len(data.load(str(flat), columns=Columns(test=0.4)).test_y) == 6


def test_clients_and_splits(tmp_path):
    for part, n in (("train", 4), ("test", 2)):
        for c, site in enumerate(("10", "9")):
            for k, kind in enumerate(("ill", "well")):
                for i in range(n):
                    picture(tmp_path / "all" / part / site / kind / f"{i}.png", 100 * (part == "test") + 10 * c + k)
    dataset = data.load(str(tmp_path / "all"))
    assert (dataset.task, dataset.client_names, dataset.class_names) == ("binary", ("9", "10"), ("ill", "well"))
    assert (dataset.test_x[:, 0, 0] >= 100).all()
    assert (dataset.train_x[:, 0, 0] < 100).all()
    assert np.array_equal(1 - dataset.train_clients, dataset.train_x[:, 0, 0] // 10)
    assert np.bincount(dataset.test_clients).tolist() == [4, 4]
    alone = data.load(str(tmp_path / "all" / "train"))
    assert alone.client_names == ("9", "10")
    assert np.bincount(alone.test_clients).tolist() == [2, 2]
    assert data.load(str(tmp_path / "all"), columns=Columns(task="classification")).task == "classification"


def test_grey_and_colour(flat):
    picture(flat / "owl" / "0.jpg", (200, 100, 0), mode="RGB")
    picture(flat / "owl" / "1.gif", 3, mode="P")
    picture(flat / "owl" / "2.png", (1, 2, 3, 4), mode="RGBA")
    dataset = data.load(str(flat))
    assert dataset.train_x.shape[1:] == (4, 5, 3)
    grey = np.concatenate([dataset.train_x, dataset.test_x])[np.concatenate([dataset.train_y, dataset.test_y]) == 0]
    assert (grey[..., 0] == grey[..., 2]).all()


def broken(folder):
    content = (folder / "dog" / "3.png").read_bytes()
    (folder / "dog" / "3.png").write_bytes(content[: len(content) // 2])


def other_depth(folder):
    picture(folder / "owl" / "deep" / "0.png", 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (broken, r"dog/3\.png is no readable image \(.*\): replace it or remove it"),
        (lambda f: (f / "dog" / "3.png").write_bytes(b"noise"), r"dog/3\.png is no readable image"),
        (lambda f: (f / "dog" / "3.png").write_bytes(b""), r"dog/3\.png is no readable image"),
        (lambda f: picture(f / "dog" / "3.png", 1, (6, 4)), r"dog/3\.png has 6 × 4 pixels, and cat/0\.png has 5 × 4"),
        (lambda f: picture(f / "dog" / "3.png", 1, mode="I;16"), r"dog/3\.png has pixels of the kind I;16: save it"),
        (other_depth, r"holds cat/0\.png, and owl/deep/0\.png: every image must lie in class/ or in client/class/"),
        (lambda f: picture(f / "0.png", 1), r"holds 0\.png: every image must lie in class/"),
        (lambda f: (f / "cat").rename(f / "train"), "has a folder 'train' and a folder 'dog' beside it"),
    ],
)
def test_wrong_folders(flat, change, why):
    change(flat)
    with pytest.raises(UserError, match=why) as caught:
        data.load(str(flat))
    assert "\n" not in str(caught.value)


def test_wrong_settings(flat, tmp_path):
    with pytest.raises(UserError, match=r"data\.target = 'y': '.*' is a folder of images, whose folders say what is"):
        data.load(str(flat), columns=Columns("y"))
    with pytest.raises(UserError, match=r"has 3 classes; use data\.task=classification"):
        data.load(str(flat), columns=Columns(task="binary"))
    with pytest.raises(UserError, match="is a folder of images of classes"):
        data.load(str(flat), columns=Columns(task="regression"))
    picture(tmp_path / "one" / "cat" / "0.png", 1)
    with pytest.raises(UserError, match="has one class, 'cat'"):
        data.load(str(tmp_path / "one"))


def test_a_class_in_the_test_data_alone(tmp_path):
    for place in ("train/a", "train/b", "test/a", "test/c"):
        picture(tmp_path / place / "0.png", 1)
    with pytest.raises(UserError, match="no row for training has the class 'c'"):
        data.load(str(tmp_path))


def test_identity_is_names_and_content(flat):
    first = own.digest(str(flat))
    (flat / "cat" / "notes.txt").write_text("changed")
    assert own.digest(str(flat)) == first, "what is no image decides nothing"
    (flat / "cat" / "0.png").rename(flat / "dog" / "9.png")
    moved = own.digest(str(flat))
    assert moved != first
    picture(flat / "dog" / "9.png", 77)
    assert own.digest(str(flat)) not in (first, moved)


def test_folders_of_clients_are_the_clients_of_a_run(here):
    for site in ("north", "south"):
        for kind in ("ill", "well"):
            for i in range(4):
                picture(here / "scans" / site / kind / f"{i}.png", 100 * (kind == "well") + i)
    words = {"model": {"name": "linear"}, "attack": {"name": "none"}, "train": {"rounds": 1, "device": "cpu"}}
    run = fairmean.run(data={"name": "scans"}, **words)
    assert (run.config.partition.name, run.config.partition.clients) == ("given", 2)
    assert run.client_names == ["north", "south"]
