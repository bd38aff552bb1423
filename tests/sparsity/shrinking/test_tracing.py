# SPDX-License-Identifier: Apache-2.0
"""Which channels hang together, for builds whose answer is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from channel_nets import NETS, Attention, items, net
from fewbit.sparsity.shrinking.choosing import how_many
from fewbit.sparsity.shrinking.groups import CHANNELS, HEADS, Group, Member, find_groups
from fewbit.sparsity.shrinking.tracing import trace
from tiny_models import shaken, tokens, transformer


def _found(model: nn.Module, x: Tensor) -> dict[str, tuple[str, int, int]]:
    """By what makes them: kind, number of classes, number of those that can go."""
    return {
        group.name: (group.kind, len(group.classes), len(group.free)) for group in find_groups(trace(model, ((x,), {})))
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gated", {"come.weight + down.weight": 8, "gate.weight + up.weight": 12, "go.weight": 0}),
        ("flat", {"conv1.weight": 8, "conv2.weight": 6, "fc1.weight": 10, "fc2.weight": 0}),
        (
            "mobile",
            {"stem.weight + thin.weight": 8, "wide.weight + more.weight": 16, "less.weight": 4, "head.weight": 0},
        ),
        ("joined", {"stem.weight": 6, "convs.0.weight": 4, "convs.1.weight": 4, "up.weight": 4, "last.weight": 0}),
    ],
)
def test_channels_that_are_made_together(name: str, wanted: dict[str, int]) -> None:
    found = _found(net(name), items(NETS[name][1])[0])
    assert {group: free for group, (_, _, free) in found.items()} == wanted
    assert {kind for kind, _, _ in found.values()} == {CHANNELS}


def test_heads_of_one_matrix_and_of_three() -> None:
    assert _found(shaken(Attention()), items((6, 8))[0])["qkv.weight"] == (HEADS, 4, 4)
    found = _found(transformer("qwen3"), tokens())  # two key heads for four of queries, each with a norm of its own
    first = " + ".join(f"model.layers.0.self_attn.{each}_proj.weight" for each in "qkv")
    assert found[first] == (HEADS, 2, 2)


class Mixer(nn.Module):
    """Tokens are mixed by a weight, past which channels go; channels are mixed by another."""

    def __init__(self) -> None:
        super().__init__()
        self.come, self.over, self.go = nn.Linear(3, 6), nn.Linear(5, 5), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.come(x)
        return self.go(x + self.over(x.transpose(1, 2)).transpose(1, 2))


def test_channels_go_past_a_weight_over_positions() -> None:
    found = _found(shaken(Mixer()), items((5, 3))[0])
    assert found["come.weight"] == (CHANNELS, 6, 6)
    assert "over.weight" not in found


@given(st.integers(1, 40), st.floats(0, 0.99), st.sampled_from([1, 2, 8]), st.integers(0, 40))
def test_counts_are_exact_and_one_is_left(count: int, share: float, multiple: int, free: int) -> None:
    labels = torch.arange(1, count + 1)
    member = Member("a.weight", 0, labels, reads=False, makes=True)
    group = Group(CHANNELS, tuple(labels.tolist()), tuple(labels.tolist()[:free]), (member,))
    gone = how_many(group, share, multiple)
    assert 0 <= gone <= min(free, count - 1, int(share * count + 1e-9))
    left = count - gone
    if multiple == 1 and free >= count:
        assert gone == min(count - 1, int(share * count + 1e-9))
    if gone and gone < free:
        assert left % multiple == 0
