"""Data sets as ``datasets`` saves them to disk: tables, images and tokens; written with pyarrow, or the real thing."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from fairmean import data
from fairmean.data import Columns, own
from fairmean.errors import UserError
from fairmean.terminal.main import main

pyarrow = pytest.importorskip("pyarrow")
N = 24


def saved(folder, columns, features=None, files=1):
    """Write a folder as ``Dataset.save_to_disk`` does."""
    folder.mkdir(parents=True)
    metadata = {"huggingface": json.dumps({"info": {"features": features or {}}})}
    table = pyarrow.table(columns).replace_schema_metadata(metadata)
    names = [f"data-{i:05d}-of-{files:05d}.arrow" for i in range(files)]
    for i, name in enumerate(names):
        part = table.slice(i * N // files, N // files if i < files - 1 else None)
        with (folder / name).open("wb") as stream, pyarrow.ipc.new_stream(stream, part.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return str(folder)


def saved_parts(folder, **parts):
    """Write a folder as ``DatasetDict.save_to_disk`` does."""
    for name, (columns, features) in parts.items():
        saved(folder / name, columns, features)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    return str(folder)


LABEL = {"names": ["no", "yes", "maybe"], "_type": "ClassLabel"}
Y = [i % 3 for i in range(N)]
SITES = ["north" if i < 12 else "south" for i in range(N)]


def png(i, size=(4, 3)):
    buffer = io.BytesIO()
    Image.new("L", size, i).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def test_a_table(tmp_path):
    columns = {"a": np.arange(N) / 2, "kind": ["u", "v", "w", "v"] * 6, "site": SITES, "label": Y}
    file = saved(tmp_path / "d", columns, {"label": LABEL}, files=3)
    dataset = data.load(file, columns=Columns(client="site"))
    assert dataset.train_x.shape == (len(dataset.train_y), 4)
    assert (dataset.task, dataset.class_names, dataset.client_names) == (
        "classification", ("maybe", "no", "yes"), ("north", "south"),
    )  # fmt: skip
    assert sorted([*dataset.train_x[:, 0], *dataset.test_x[:, 0]]) == (np.arange(N) / 2).tolist()
    assert dataset.table
    numbers = data.load(file, columns=Columns("a", "site"))
    assert numbers.task == "regression"
    assert numbers.train_x.shape[1] == 6, "two kinds of categories, three of each"


def test_images_in_two_parts(tmp_path, capsys):
    features = {"image": {"_type": "Image"}, "label": LABEL}

    def part(rows):
        return {"image": [png(i) for i in rows], "label": [Y[i] for i in rows]}, features

    file = saved_parts(tmp_path / "d", train=part(range(18)), test=part(range(18, N)), validation=part(range(2)))
    dataset = data.load(file)
    assert dataset.train_x.shape == (18, 3, 4)
    assert dataset.train_x[:, 0, 0].tolist() == list(range(18))
    assert dataset.test_x[:, 0, 0].tolist() == list(range(18, N))
    assert not dataset.table
    assert main(["data", "show", file]) == 0
    page = capsys.readouterr().out
    assert "The part 'validation' is not used." in page
    assert "images of 4 × 3 pixels" in page
    assert "one of 3 classes" in page


def test_tokens(tmp_path, capsys):
    tokens = [[i % 7, (i + 1) % 7, (i + 2) % 7] for i in range(N)]
    columns = {"input_ids": tokens, "attention_mask": [[1, 1, 1]] * N, "text": ["…"] * N, "label": Y, "site": SITES}
    file = saved(tmp_path / "d", columns, {"label": LABEL})
    classified = data.load(file, columns=Columns(client="site"))
    assert classified.train_x.dtype == np.int64
    assert classified.train_x.shape == (len(classified.train_y), 3)
    assert classified.task == "classification"
    plain = saved(tmp_path / "plain", {"input_ids": tokens, "site": SITES})
    following = data.load(plain, columns=Columns(client="site"))
    assert (following.task, following.classes) == ("next-token", 7)
    assert np.array_equal(following.train_y, (following.train_x + 1) % 7)
    assert following.client_names == ("north", "south")
    paired = saved(tmp_path / "paired", {"input_ids": tokens, "labels": tokens})
    assert np.array_equal((same := data.load(paired, columns=Columns("labels"))).train_y, same.train_x)
    assert main(["data", "show", plain, "data.client=site"]) == 0
    assert "the next token, out of 7" in capsys.readouterr().out


def test_number_lists(tmp_path):
    file = saved(tmp_path / "d", {"x": [[i / 2, 1.0] for i in range(N)], "y": Y})
    dataset = data.load(file, columns=Columns("y"))
    assert dataset.train_x.dtype == np.float32
    assert dataset.train_x.shape == (len(dataset.train_y), 2)


def test_wrong_folders(tmp_path):
    image, label = {"image": {"_type": "Image"}, "label": LABEL}, {"label": LABEL}
    ragged = [[1, 2]] * 5 + [[1, 2, 3]] + [[1, 2]] * 18
    cases = {
        "ragged": ({"input_ids": ragged, "label": Y}, label, "'input_ids' has 3 values in row 6, and 2 in the first"),
        "hole": ({"input_ids": [[1]] * 23 + [None], "label": Y}, label, "'input_ids' has no list in row 24"),
        "negative": ({"input_ids": [[-1]] * N, "label": Y}, label, "holds -1: whole numbers are tokens"),
        "broken": (
            {"image": [*[png(1)] * 23, {"bytes": b"noise", "path": None}], "label": Y}, image,
            "the image in row 24 is no readable image",
        ),
        "no image": ({"image": [None, *[png(1)] * 23], "label": Y}, image, "'image' has no image in row 1"),
        "sizes": ({"image": [png(1), *[png(1, (9, 9))] * 23], "label": Y}, image, "the image in row 2 has 9 × 9"),
        "unlabelled": ({"a": range(N), "label": [-1, *Y[1:]]}, label, "column 'label' lacks a value in 1 of 24 rows"),
        "two": ({"a": [[1]] * N, "b": [[1]] * N, "label": Y}, label, r"several columns of images or lists \(a, b\)"),
        "no target": ({"a": range(N), "b": Y}, {}, "name the column that is to be predicted"),
        "numbers, no target": ({"a": [[0.5]] * N}, {}, "name the column that is to be predicted"),
    }  # fmt: skip
    for name, (columns, features, why) in cases.items():
        with pytest.raises(UserError, match=why):
            data.load(saved(tmp_path / name, columns, features))
    with pytest.raises(UserError, match="has the parts test: it needs one called 'train'"):
        data.load(saved_parts(tmp_path / "parts", test=({"a": range(N), "label": Y}, label)))
    with pytest.raises(UserError, match="'train' and 'test' have different columns"):
        data.load(saved_parts(tmp_path / "unlike", train=({"a": range(N)}, {}), test=({"b": range(N)}, {})))
    file = saved(tmp_path / "file", {"a": range(N), "label": Y}, label)
    (tmp_path / "file" / "data-00000-of-00001.arrow").write_bytes(b"noise")
    with pytest.raises(UserError, match=r"arrow is not readable \(.*\): write it anew"):
        data.load(file)
    (tmp_path / "file" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(UserError, match="arrow is not there: save the data set anew"):
        data.load(file)
    (tmp_path / "file" / "state.json").write_text("{")
    with pytest.raises(UserError, match=r"state\.json cannot be read"):
        data.load(file)


def test_identity(tmp_path):
    one, other = (saved(tmp_path / str(i), {"a": np.arange(N) + i, "label": Y}) for i in range(2))
    assert own.digest(one)
    assert own.digest(one) != own.digest(other)


def test_what_datasets_itself_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="the package datasets, which fairmean does not need")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=LABEL["names"]),
            "site": datasets.Value("string"),
        }
    )
    rows = {"image": [Image.new("RGB", (4, 3), (i, 0, 0)) for i in range(N)], "label": Y, "site": SITES}
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.train_test_split(test_size=6, seed=0, shuffle=True).save_to_disk(str(tmp_path / "images"))
    dataset = data.load(str(tmp_path / "images"), columns=Columns(client="site"))
    assert dataset.train_x.shape == (18, 3, 4, 3)
    both = np.concatenate([dataset.train_x, dataset.test_x])[:, 0, 0, 0]
    assert sorted(both.tolist()) == list(range(N)), "also where rows were shuffled before they were saved"
    names = [dataset.class_names[y] for y in np.concatenate([dataset.train_y, dataset.test_y])]
    assert names == [LABEL["names"][i % 3] for i in both]
    tokens = datasets.Dataset.from_dict({"input_ids": [[i, i + 1] for i in range(N)]})
    tokens.save_to_disk(str(tmp_path / "tokens"), num_shards=2)
    assert data.load(str(tmp_path / "tokens")).classes == N + 1
