"""The samples of one round of a stack of runs, and sums over each client's rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairmean.engine.batch import Batch


@dataclass(frozen=True)
class Present:
    """The clients of a round, and the numbers of samples that each of them has in all."""

    sizes: Tensor
    ids: Tensor
    host_sizes: Tensor
    host_ids: Tensor


@dataclass(frozen=True)
class Rows(Present):
    """The samples of a round, client after client, with labels for every run."""

    x: Tensor
    y: Tensor
    dynamic: Tensor | None
    bounds: list[int]
    equal: int
    owner: Tensor
    inverse: Tensor
    lengths: Tensor
    minus_one: Tensor
    padded: Tensor | None

    @staticmethod
    def of(
        batch: Batch, x: Tensor, y: Tensor, dynamic: Tensor | None, dtype: torch.dtype, on_host: bool = True
    ) -> Rows:
        """``on_host``: sizes and ids are also wanted there, for which the host waits."""
        lengths = np.diff(batch.offsets)
        clients = torch.arange(len(lengths), device=x.device)
        owner = torch.repeat_interleave(clients, batch.lengths, output_size=int(batch.offsets[-1]))
        return Rows(
            x=x,
            y=y,
            dynamic=dynamic,
            bounds=batch.offsets.tolist(),
            equal=int(lengths[0]) if (lengths == lengths[0]).all() else 0,
            owner=owner,
            inverse=(1 / batch.lengths.double()).to(dtype)[owner],
            lengths=batch.lengths,
            sizes=batch.sizes,
            ids=batch.ids,
            host_sizes=batch.sizes.cpu() if on_host else batch.sizes,
            host_ids=batch.ids.cpu() if on_host else batch.ids,
            minus_one=torch.tensor(-1.0, dtype=dtype, device=x.device),
            padded=_padded(batch.offsets, x.device),
        )

    def means(self, values: Tensor) -> Tensor:
        """Mean of (runs × rows) or (runs × rows × k) per client, in float64."""
        if values.dim() == 3:
            runs, _, k = values.shape
            flat = self.means(values.transpose(1, 2).flatten(0, 1))
            return flat.view(runs, k, -1).transpose(1, 2)
        if self.equal:
            return values.view(len(values), -1, self.equal).mean(2, dtype=torch.float64)
        if self.padded is not None:
            table = F.pad(values, (0, 1))[:, self.padded]
            return table.sum(2, dtype=torch.float64) / self.lengths
        return torch.stack([values[:, part].mean(1, dtype=torch.float64) for part in self._parts()], 1)

    def weighted(self, values: Tensor, tilt: float, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """(1/t) log (Σ ω exp(t ℓ) / Σ ω) per client, and each sample's share in its gradient; t = 0: Σ ω ℓ / Σ ω."""
        losses, shares = [], []
        for part in self._parts():
            mine = values[:, part].double()
            w = torch.ones_like(mine) if weights is None else weights[:, part].double()
            total = w.sum(1, keepdim=True).clamp(min=1e-300)
            if tilt == 0:
                share = w / total
                losses.append((share * mine).sum(1))
            else:
                top = (tilt * mine).amax(1, keepdim=True)
                powers = w * torch.exp(tilt * mine - top)
                sums = powers.sum(1, keepdim=True).clamp(min=1e-300)
                share = powers / sums
                losses.append(((top + torch.log(sums / total)) / tilt)[:, 0])
            shares.append(share.to(values.dtype))
        return torch.stack(losses, 1), torch.cat(shares, 1)

    def _parts(self) -> list[slice]:
        return [slice(a, b) for a, b in pairwise(self.bounds)]


def _padded(offsets: NDArray[np.int64], device: torch.device) -> Tensor | None:
    """Rows of every client in a table (clients × longest), short ones filled up with one past the last row."""
    lengths = np.diff(offsets)
    if len(lengths) * lengths.max() > 3 * offsets[-1]:
        return None
    place = np.arange(lengths.max())
    table = np.where(place < lengths[:, None], offsets[:-1, None] + place, offsets[-1])
    return torch.from_numpy(table).to(device)
