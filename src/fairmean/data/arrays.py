"""Arrays as a data set: every one is checked, texts become numbers, and the targets say which task it is."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data.column import sorted_names
from fairmean.data.dataset import Dataset
from fairmean.data.targets import Target
from fairmean.errors import UserError

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("clients_train", "clients_test")
_FEW = 20  # different whole numbers, in floating-point targets, that are more likely classes
_MOST_CLASSES = 1_000_000
_Inputs = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]


def from_arrays(name: str, arrays: Mapping[str, Any], task: str = "auto") -> Dataset:
    """A data set of these arrays, all of which are checked.

    Whole numbers and texts in ``y_*`` are classes, floats are the numbers of a regression, and rows of whole numbers
    are tokens; ``task``, unless 'auto', must fit. Inputs that are whole numbers, but no bytes, are tokens.
    """
    present = _present(name, arrays)
    train_x = _inputs(name, "x_train", present["x_train"])
    test_x = _inputs(name, "x_test", present["x_test"])
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        train, test = (f"{x.dtype} {x.shape[1:]}" for x in (train_x, test_x))
        raise UserError(f"data '{name}': a sample of x_train is {train}, of x_test {test}: make them alike")
    target = _targets(name, present, (train_x, test_x), arrays.get("classes"), task)
    clients, names = _clients(name, present, len(train_x), len(test_x))
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=target.values[: len(train_x)],
        test_x=test_x,
        test_y=target.values[len(train_x) :],
        classes=target.classes,
        train_clients=clients["clients_train"],
        test_clients=clients["clients_test"],
        task=target.task,
        client_names=names,
        class_names=target.names,
    )


def checked(made: Dataset, name: str, task: str = "auto") -> Dataset:
    """A Dataset that the user built, its arrays checked like any others."""
    values = (made.train_x, made.train_y, made.test_x, made.test_y, made.train_clients, made.test_clients)
    arrays = dict(zip(REQUIRED + OPTIONAL, values, strict=True))
    task = made.task if task == "auto" else task
    classes = None if task == "regression" else made.classes
    dataset = from_arrays(name, arrays | {"classes": classes}, task)
    clients, classes_called = made.client_names or dataset.client_names, made.class_names or dataset.class_names
    owner = dataset.train_clients
    if clients is not None and owner is None:
        raise UserError(
            f"data '{name}': client_names says what clients are called, and train_clients is missing: add it"
        )
    if clients is not None and owner is not None and owner.max() >= len(clients):
        raise UserError(f"data '{name}': client {owner.max()} has no name, client_names has {len(clients)}: add it")
    if clients is not None and owner is not None and owner.max() + 1 < len(clients):
        raise UserError(
            f"data '{name}': client_names has {len(clients)} names, and there are {owner.max() + 1} clients"
        )
    if classes_called is not None and dataset.task != "regression" and len(classes_called) != dataset.classes:
        raise UserError(
            f"data '{name}': class_names has {len(classes_called)} names, and there are {dataset.classes} classes"
        )
    return dataclasses.replace(
        dataset,
        name=made.name,
        mean=made.mean,
        std=made.std,
        client_names=clients,
        class_names=classes_called if dataset.task != "regression" else None,
        table=made.table,
        target_spread=made.target_spread,
        target_middle=made.target_middle,
    )


def _present(name: str, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays that are there."""
    present = {}
    for key in REQUIRED + OPTIONAL:
        if arrays.get(key) is not None:
            try:
                present[key] = np.asarray(arrays[key])
            except (ValueError, TypeError, RuntimeError) as error:
                raise UserError(f"data '{name}': {key} is not an array ({error}): make it one") from error
    if missing := [key for key in REQUIRED if key not in present]:
        raise UserError(f"data '{name}' lacks {', '.join(missing)}: it needs {', '.join(REQUIRED)}")
    return present


def _targets(
    name: str, present: Mapping[str, NDArray[Any]], inputs: tuple[_Inputs, _Inputs], classes: Any, task: str
) -> Target:
    """The targets of training, then those of testing."""
    targets = {key: present[key] for key in ("y_train", "y_test")}
    if any(y.ndim > 1 for y in targets.values()) and inputs[0].dtype == np.int64:
        return _tokens(name, targets, inputs, classes, task)
    for (key, y), x in zip(targets.items(), inputs, strict=True):
        _one_each(name, key, y, len(x))
    if inputs[0].dtype == np.int64 and _look_like_features(np.asarray(inputs[0])):
        warnings.warn(
            f"the inputs of '{name}' are whole numbers and so taken for tokens, names of symbols; save numbers to "
            "compute with as float32",
            stacklevel=2,
        )
    if task == "next-token":
        raise UserError(
            f"data.task = 'next-token': '{name}' has single targets; x_* and y_* must be rows of whole numbers, alike "
            "in shape"
        )
    texts = {key: _texts(y) for key, y in targets.items()}
    kinds = ["texts" if texts[key] is not None else _kind(name, key, y, task) for key, y in targets.items()]
    if kinds[0] != kinds[1]:
        raise UserError(f"data '{name}': y_train holds {kinds[0]}, and y_test {kinds[1]}: make them alike")
    if kinds[0] == "numbers":
        if task not in ("auto", "regression"):
            raise UserError(
                f"data '{name}': y_train is {targets['y_train'].dtype}: save it as integers, counted from 0"
            )
        numbers = np.concatenate([_floats(name, key, y) for key, y in targets.items()])
        if task == "auto" and not np.mod(numbers, 1).any() and len(np.unique(numbers)) <= _FEW:
            warnings.warn(
                f"the targets of '{name}' are floating-point numbers and so a regression, though few whole numbers "
                "occur; save classes as integers, or set data.task=regression",
                stacklevel=2,
            )
        return Target("regression", numbers, 1)
    if kinds[0] == "texts":
        if task == "regression":
            raise UserError(f"data.task = 'regression': y_train of '{name}' holds texts: save numbers")
        values, names = _encoded([*texts.values()])
        return _as_asked(name, Target(task, values, _classes(name, targets, values, classes, len(names)), names))
    values = np.concatenate([_integers(name, key, y) for key, y in targets.items()])
    return _as_asked(name, Target(task, values, _classes(name, targets, values, classes)))


def _look_like_features(x: NDArray[np.int64]) -> bool:
    """Whether columns have ranges of their own, as features have and the places of a sequence have not."""
    top = x.max(0).astype(np.float64)
    return bool(x.shape[1] > 1 and top.max() > 0 and (top < top.max() / 4).mean() > 0.25)


def _as_asked(name: str, target: Target) -> Target:
    """Classes, for the task that was asked for."""
    if target.task == "auto":
        return target._replace(task="classification")
    if target.task == "binary" and target.classes != 2:
        raise UserError(
            f"data.task = 'binary': '{name}' has {target.classes} classes, not two; use data.task=classification"
        )
    return target


def _tokens(
    name: str, targets: Mapping[str, NDArray[Any]], inputs: tuple[_Inputs, _Inputs], classes: Any, task: str
) -> Target:
    """Targets of next-token prediction: what follows each token of the input."""
    for (key, y), x in zip(targets.items(), inputs, strict=True):
        if y.shape != x.shape:
            raise UserError(
                f"data '{name}': {key} has shape {y.shape}: it needs {x.shape}, the next token for each token of "
                f"{key.replace('y_', 'x_')}"
            )
    if task not in ("auto", "next-token"):
        raise UserError(f"data.task = '{task}': '{name}' has rows of targets, which is next-token prediction")
    values = np.concatenate([_integers(name, key, y) for key, y in targets.items()])
    largest = int(max(values.max(), *(x.max() for x in inputs)))
    if largest >= _MOST_CLASSES:
        raise UserError(f"data '{name}' holds a token {largest:,}: number the tokens from 0, without large gaps")
    vocabulary = largest + 1 if classes is None else _whole(name, classes)
    if vocabulary <= largest:
        raise UserError(f"data '{name}': classes={vocabulary}, but there is a token {largest}: raise it")
    return Target("next-token", values, vocabulary)


def _clients(
    name: str, present: Mapping[str, NDArray[Any]], train: int, test: int
) -> tuple[dict[str, NDArray[np.int64] | None], tuple[str, ...] | None]:
    """Whose the samples are: by number, or by name."""
    owners = {key: present[key] for key in OPTIONAL if key in present}
    for key, array in owners.items():
        _one_each(name, key, array, train if key == "clients_train" else test)
    texts = {key: _texts(array) for key, array in owners.items()}
    if not any(array is not None for array in texts.values()):
        return {key: _integers(name, key, owners[key]) if key in owners else None for key in OPTIONAL}, None
    if "clients_train" not in owners:
        raise UserError(f"data '{name}' has clients_test, but no clients_train: give both, or neither")
    if any(array is None for array in texts.values()):
        raise UserError(f"data '{name}': clients_train and clients_test are names in one, numbers in the other")
    ids, names = _encoded([*texts.values()])
    untaught = np.setdiff1d(ids[train:], ids[:train])
    if len(untaught):
        raise UserError(f"data '{name}': client '{names[int(untaught[0])]}' is in clients_test, not in clients_train")
    return {"clients_train": ids[:train], "clients_test": ids[train:] if len(owners) > 1 else None}, names


def _encoded(parts: list[NDArray[np.str_] | None]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Texts as places among their sorted names."""
    names, places = np.unique(np.concatenate([part for part in parts if part is not None]), return_inverse=True)
    return sorted_names(places, [str(name) for name in names])


def _texts(array: NDArray[Any]) -> NDArray[np.str_] | None:
    """An array of texts; None if it holds something else."""
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "O" and array.size and all(isinstance(value, str) for value in array.ravel()):
        return array.astype(np.str_)
    return None


def _kind(name: str, key: str, y: NDArray[Any], task: str) -> str:
    """'numbers' for a regression, or 'classes'."""
    if np.issubdtype(y.dtype, np.floating) or (task == "regression" and y.dtype.kind in "iub"):
        return "numbers"
    if np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_:
        return "classes"
    raise UserError(
        f"data '{name}': {key} is {y.dtype}: save classes as integers, counted from 0, or as texts, and numbers as "
        "float32"
    )


def _classes(
    name: str, targets: Mapping[str, NDArray[Any]], values: NDArray[np.int64], classes: Any, names: int | None = None
) -> int:
    """The number of classes: as given, or one more than the largest label, if most of the classes below it occur.

    One label of 1,000 among three classes is a mistake more often than a problem with 1,001 classes.
    """
    largest = int(values.max())
    if classes is not None:
        if _whole(name, classes) <= largest:
            raise UserError(f"{name}: classes={classes}, but there is a label {largest}: raise it")
        return names or int(classes)
    distinct = len(np.unique(values))
    if largest + 1 > 2 * distinct or largest >= _MOST_CLASSES:
        where = "y_train" if targets["y_train"].max() == largest else "y_test"
        raise UserError(
            f"data '{name}': {where} holds a label {largest:,}, but only {distinct} labels occur: number the classes "
            "0 … K−1 without large gaps, or let a function return a Dataset with classes=K"
        )
    return largest + 1


def _whole(name: str, classes: Any) -> int:
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes > _MOST_CLASSES:
        raise UserError(f"data '{name}': classes = {classes!r}: must be a whole number, at most {_MOST_CLASSES:,}")
    return int(classes)


def _inputs(name: str, key: str, array: NDArray[Any]) -> _Inputs:
    """uint8 as it is, floats as finite float32, other whole numbers as tokens."""
    if array.ndim < 2 or 0 in array.shape:
        raise UserError(f"data '{name}': {key} has shape {array.shape}: it needs samples by features, none empty")
    if array.dtype == np.uint8:
        return np.require(array, np.uint8, ["C", "W"])
    if np.issubdtype(array.dtype, np.integer) and array.ndim == 2:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= _MOST_CLASSES:
            raise UserError(
                f"data '{name}': {key} is {array.dtype} and holds {low if low < 0 else high:,}: whole numbers are "
                f"tokens, counted from 0 and below {_MOST_CLASSES:,}; save numbers to compute with as float32"
            )
        return np.require(array, np.int64, ["C", "W"])
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"data '{name}': {key} is {array.dtype}: save it as uint8 (0 to 255) or float32")
    return _floats(name, key, array)


def _floats(name: str, key: str, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        floats = np.require(array, np.float32, ["C", "W"])
    if bad := int(floats.size - np.isfinite(floats).sum()):
        raise UserError(f"data '{name}': {key} has {bad} values that are not finite in float32: clean them")
    return floats


def _one_each(name: str, key: str, array: NDArray[Any], length: int) -> None:
    if array.shape != (length,):
        x = key.replace("y_", "x_").replace("clients_", "x_")
        raise UserError(f"data '{name}': {key} has shape {array.shape}: it needs ({length},), one for each of {x}")


def _integers(name: str, key: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Labels, tokens or clients: non-negative integers."""
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != np.bool_:
        raise UserError(f"data '{name}': {key} is {array.dtype}: save it as integers, counted from 0")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > np.iinfo(np.int64).max:
        raise UserError(f"data '{name}': {key} holds {low if low < 0 else high}: count from 0")
    return array.astype(np.int64)
