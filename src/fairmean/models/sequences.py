"""Models of sequences of tokens, which are whole numbers 0 … vocabulary − 1.

For next-token prediction a model returns a row of logits for every place, from the tokens up to it; for every other
task it returns one row for a sequence, from the mean over its places.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmean.errors import UserError

_WIDTH, _HEADS, _BLOCKS = 64, 4, 2
_EMBEDDED, _HIDDEN = 64, 128


def transformer(shape: tuple[int, ...], outputs: int, vocabulary: int, task: str) -> nn.Module:
    """Two pre-norm attention blocks of width 64 with four heads and learned positions, for tokens."""
    return Transformer(_length("transformer", shape), outputs, vocabulary, causal=task == "next-token")


def lstm(shape: tuple[int, ...], outputs: int, vocabulary: int, task: str) -> nn.Module:
    """Embeddings of width 64, an LSTM of width 128 and a linear layer, for tokens."""
    _length("lstm", shape)
    return Lstm(outputs, vocabulary, every_place=task == "next-token")


def _length(name: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 1:
        raise UserError(
            f"model '{name}' is for sequences of tokens, one number for each place, and an input of the data has shape "
            f"{shape}; name a model of your own (model.name=module:factory)"
        )
    return shape[0]


class Transformer(nn.Module):
    """``causal``: a place sees those up to it, and every place has its own logits. Without it: one row for all."""

    def __init__(self, length: int, outputs: int, vocabulary: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.places = nn.Embedding(vocabulary, _WIDTH), nn.Embedding(length, _WIDTH)
        self.blocks = nn.Sequential(*(AttentionBlock(_WIDTH, _HEADS, causal) for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        hidden = self.norm(self.blocks(self.tokens(x.long()) + self.places(places)))
        logits: Tensor = self.head(hidden if self.causal else hidden.mean(1))
        return logits


class AttentionBlock(nn.Module):
    """h ← h + Attention(norm(h)), then h ← h + MLP(norm(h)).

    Attention is softmax(QKᵀ/√width)·V. On a CPU PyTorch's fused kernel computes it, which is a fifth faster for the
    whole model. On a GPU it is written out, because the fused kernels there do not add up in the same order every time.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attends, self.joins = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._attention(self.before_attention(hidden))
        return hidden + self.mlp(self.before_mlp(hidden))  # type: ignore[no-any-return]

    def _attention(self, hidden: Tensor) -> Tensor:
        n, length, width = hidden.shape
        split = self.attends(hidden).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each samples × heads × places × width
        if hidden.device.type == "cpu":
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        else:
            scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
            if self.causal:
                later = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
                scores = scores.masked_fill(later, -torch.inf)
            mixed = scores.softmax(3) @ value
        return self.joins(mixed.transpose(1, 2).reshape(n, length, width))  # type: ignore[no-any-return]


class Lstm(nn.Module):
    """``every_place``: logits for every place. Without it: one row, from the mean of the hidden states."""

    def __init__(self, outputs: int, vocabulary: int, every_place: bool) -> None:
        super().__init__()
        self.every_place = every_place
        self.tokens = nn.Embedding(vocabulary, _EMBEDDED)
        self.recurrent = PlainLSTM(_EMBEDDED, _HIDDEN, batch_first=True)
        self.head = nn.Linear(_HIDDEN, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.recurrent(self.tokens(x.long()))[0]
        logits: Tensor = self.head(hidden if self.every_place else hidden.mean(1))
        return logits


class PlainLSTM(nn.LSTM):
    """An LSTM without cuDNN's kernels, which can be differentiated neither in eval() nor twice.

    Estimates of the curvature need both.
    """

    def forward(self, *arguments: Any, **named: Any) -> Any:
        with torch.backends.cudnn.flags(enabled=False):
            return super().forward(*arguments, **named)
