"""Who belongs to which group: groups by name, one or several for each sample, in the forms that people have them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmean.errors import UserError, unknown
from fairmean.torch.names import as_array, column


class Membership:
    """The groups of a data set, and the place of every sample among them.

    ``groups`` is a column (a list, an array, a tensor, a pandas column) with one name or number for each sample; or,
    where groups overlap, a data frame or a dictionary of masks by name, a table of 0 and 1 (samples × groups), or a
    list with the names of each sample's groups.
    """

    def __init__(self, groups: Any, who: str) -> None:
        self.who = who
        if _is_column(groups):
            self.names, owner = column(groups, who)
            self.overlap = False
            self.sizes = np.bincount(owner, minlength=len(self.names))
            self.samples = len(owner)
        else:
            self.names, table = self._table(groups, None)
            self.overlap = True
            self.sizes = table.sum(0)
            self.samples = len(table)
            if not self.sizes.all():
                raise UserError(f"{who}: nobody is in group {self.names[int(self.sizes.argmin())]!r}; leave it out")
            if strangers := int((table.sum(1) == 0).sum()):
                warnings.warn(
                    f"{who}: {strangers} of {self.samples} samples belong to no group, and will not be trained on. "
                    "Put them into a group of their own to keep them.",
                    stacklevel=4,
                )
        self._place = {name: place for place, name in enumerate(self.names)}
        numbers = not self.overlap and all(isinstance(name, int) for name in self.names)
        self._numbers = torch.tensor(self.names) if numbers else None

    @classmethod
    def named(cls, names: Any, who: str) -> Membership:
        """Groups of which the names alone are known, each sample being in one of them."""
        members = cls(names, who)
        members.samples = 0
        return members

    def encode(self, groups: Any) -> Tensor:
        """The groups of samples as a tensor that can go through a ``DataLoader``, a row for each sample."""
        if self.overlap:
            return torch.from_numpy(self._table(groups, self.names)[1]).to(torch.float32)
        if isinstance(groups, Tensor) and not groups.is_floating_point():
            if self._numbers is None:
                return groups
            self._refuse_unknown_numbers(groups, self._numbers)
            return groups.long()
        array = as_array(groups, self.who)
        if array.ndim != 1:
            raise UserError(f"{self.who}: one group for each sample is needed, got shape {array.shape}")
        values = array.tolist()
        for name in set(values) - self._place.keys():
            raise unknown("group", name, map(str, self.names))
        if self._numbers is not None:
            return torch.tensor(values, dtype=torch.long)
        return torch.tensor([self._place[name] for name in values], dtype=torch.long)

    def rows(self, groups: Any, device: torch.device, check: bool) -> Tensor:
        """The place of each sample's group, or for groups that overlap a row of 0 and 1 for each sample."""
        compiling = torch.compiler.is_compiling()
        ready = isinstance(groups, Tensor) and groups.dim() == 1 + self.overlap
        rows: Tensor = (groups if ready else self.encode(groups)).to(device)
        if self.overlap:
            if rows.shape[1] != len(self.names):
                raise UserError(f"{self.who}: {rows.shape[1]} columns of groups, not {len(self.names)}")
            return rows
        if self._numbers is not None:
            if self._numbers.device != device:
                self._numbers = self._numbers.to(device)
            if check and not compiling:
                self._refuse_unknown_numbers(rows, self._numbers)
            return torch.searchsorted(self._numbers, rows.long())
        if check and not compiling and bool(((rows < 0) | (rows >= len(self.names))).any()):
            raise UserError(
                f"{self.who}: a number outside 0 … {len(self.names) - 1}; numbers stand for names as encode() made them"
            )
        return rows.long()

    def sums(self, rows: Tensor, values: Tensor) -> Tensor:
        """The sum over each group's samples of ``values`` (samples, or samples × k)."""
        if self.overlap:
            return rows.to(values).T @ values
        return values.new_zeros(len(self.names), *values.shape[1:]).index_add(0, rows, values)

    def spread(self, rows: Tensor, values: Tensor) -> Tensor:
        """For each sample the sum of ``values`` over the groups it is in."""
        return rows.to(values) @ values if self.overlap else values[rows]

    def _refuse_unknown_numbers(self, groups: Tensor, numbers: Tensor) -> None:
        strange = ~torch.isin(groups.to(numbers.device), numbers)
        if bool(strange.any()):
            raise unknown("group", groups[strange.to(groups.device)][0].item(), map(str, self.names))

    def _table(self, groups: Any, names: list[Any] | None) -> tuple[list[Any], np.ndarray[Any, Any]]:
        """The names of groups that overlap, in the order of ``names``, and a table of 0 and 1 (samples × groups)."""
        if isinstance(groups, Mapping) or hasattr(groups, "columns"):
            labels = list(groups.keys() if isinstance(groups, Mapping) else groups.columns)
            columns = [as_array(groups[label], self.who) for label in labels]
            if len({len(values) for values in columns}) > 1:
                raise UserError(f"{self.who}: the masks of the groups differ in length")
            table = np.stack(columns, 1) if columns else np.zeros((0, 0))
        elif _has_names(groups):
            known = names or sorted(
                {name for entry in groups for name in entry}, key=lambda name: (str(type(name)), name)
            )
            place = {name: at for at, name in enumerate(known)}
            table = np.zeros((len(groups), len(known)))
            for row, entry in enumerate(groups):
                for name in entry:
                    if name not in place:
                        raise unknown("group", name, map(str, known))
                    table[row, place[name]] = 1
            labels = known
        else:
            table = as_array(groups, self.who)
            labels = names or list(range(table.shape[1] if table.ndim == 2 else 0))
        if table.ndim != 2 or not table.size or table.shape[1] != len(names or labels):
            raise UserError(f"{self.who}: groups that overlap are a table of samples × groups, got shape {table.shape}")
        if not np.isin(table, (0, 1)).all():
            raise UserError(f"{self.who}: a table of groups holds 0 and 1, or False and True, and nothing else")
        if names is not None and set(labels) != set(names):
            raise UserError(f"{self.who}: groups {labels} in a batch, {names} in the data")
        order = [labels.index(name) for name in names] if names is not None else list(range(len(labels)))
        return [labels[at] for at in order], table[:, order].astype(np.float64)


def _is_column(groups: Any) -> bool:
    """One group for each sample."""
    if isinstance(groups, Mapping) or hasattr(groups, "columns") or _has_names(groups):
        return False
    return getattr(groups, "ndim", np.ndim(groups)) != 2


def _has_names(groups: Any) -> bool:
    """A list with the names of each sample's groups, not a table of 0 and 1."""
    if not isinstance(groups, (list, tuple)) or not groups:
        return False
    if not all(isinstance(entry, (list, tuple, set, frozenset)) for entry in groups):
        return False
    entries = [name for entry in groups for name in entry]
    lengths = {len(entry) for entry in groups}
    return not (len(lengths) == 1 and all(isinstance(name, (bool, int)) and name in (0, 1) for name in entries))
