"""The benchmark's models of token sequences in plain torch, with their parameters in the order of our own models'.

At every place of a sequence they predict the token that follows it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from local_workloads import TOKENS  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor, nn

LENGTH = 64


class LSTM(nn.Module):
    """Embeddings of width 64, an LSTM of width 128 and a linear layer on its states."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 64)
        self.recurrent = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.tokens(x))[0])
        return logits


class Loss(nn.Module):
    """The mean cross-entropy, of samples or of all places of sequences."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())


class Transformer(nn.Module):
    """Two pre-norm blocks of width 64 with four heads, learned positions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, 64), nn.Embedding(LENGTH, 64)
        self.blocks = nn.Sequential(Block(64, 4), Block(64, 4))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.places.weight)))
        return logits


class Block(nn.Module):
    """Attention by torch's own function, then a layer of width 256."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attends, self.joins = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        n, length, width = hidden.shape
        split = self.attends(self.before_attention(hidden)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = torch.unbind(split.permute(2, 0, 3, 1, 4))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joins(mixed.transpose(1, 2).reshape(n, length, width))
        return hidden + self.mlp(self.before_mlp(hidden))  # type: ignore[no-any-return]
