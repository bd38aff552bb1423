# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fewbit.engine.run import view_of
from tiny_models import transformer

IDS = torch.randint(4, 40, (2, 6), generator=torch.Generator().manual_seed(0))


def ends(groups):
    return {tuple(sorted(name.rpartition(".")[2] for name in group)) for group in groups}


@pytest.mark.parametrize("item", [((), {"input_ids": IDS}), None], ids=["item", "its own example"])
def test_what_reads_the_same_tensor_is_tied(item):
    groups = view_of(transformer("llama")).tied(item)
    assert ends(groups) == {("k_proj", "q_proj", "v_proj"), ("gate_proj", "up_proj")}
    assert len(groups) == 4 and all(len({name.split(".")[2] for name in group}) == 1 for group in groups)
    assert view_of(transformer("gpt2")).tied(item) == []


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return self.down(self.up(x) * self.gate(x).sigmoid())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        best, out = self.router(flat).argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero().flatten()
            if len(rows):
                out[rows] = expert(flat[rows])
        return x + out.reshape(x.shape)


class Blocks(nn.Module):
    """Blocks of experts; the blocks are a list too, and none of experts."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Experts() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_experts_in_a_list_are_one_group_and_blocks_are_not():
    torch.manual_seed(0)
    model = Blocks()
    groups = view_of(model).tied(((torch.randn(2, 16, 8),), {}))
    for number in range(2):
        mine = next(group for group in groups if f"blocks.{number}.experts.0.down" in group)
        assert {name for name, _ in model.named_modules() if name.startswith(f"blocks.{number}.experts.")
                and name.endswith(("up", "gate", "down"))} <= set(mine)  # fmt: skip
        assert not any(name.startswith(f"blocks.{1 - number}.") for name in mine)


def test_a_model_without_an_example_shows_nothing():
    assert view_of(Blocks()).tied(None) == []
