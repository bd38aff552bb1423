# SPDX-License-Identifier: Apache-2.0
"""Small models the engine's tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def opt(*, tied: bool = True, layers: int = 2) -> nn.Module:
    """A random OPT, the architecture of the strategies guide, small enough for a test."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    config = OPTConfig(
        hidden_size=64, ffn_dim=128, num_hidden_layers=layers, num_attention_heads=4, vocab_size=96,
        word_embed_proj_dim=64, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return OPTForCausalLM(config).eval()


def token_ids(rows: int = 6, length: int = 9) -> Tensor:
    """Random token ids `[rows, length]`."""
    return torch.randint(4, 96, (rows, length), generator=torch.Generator().manual_seed(1))


class Mixed(nn.Module):
    """A convolution, a linear layer without bias and one with."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Linear(8 * 16, 32, bias=False)
        self.second = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(self.conv(x).relu().flatten(1)).relu())


def mixed() -> nn.Module:
    """`Mixed` with fixed weights."""
    torch.manual_seed(0)
    return Mixed().eval()


def images(batches: int = 6, size: int = 4) -> list[Tensor]:
    """Random images, `[size, 3, 4, 4]` each."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, 3, 4, 4, generator=generator) for _ in range(batches)]


def distance(a: Tensor, b: Tensor) -> float:
    """Relative error of `a` against `b`."""
    return float(((a - b).norm() / b.norm()).detach())
