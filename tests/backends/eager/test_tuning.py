# SPDX-License-Identifier: Apache-2.0
"""A block run with other weights: items joined or alone answer the same, slopes are right, the walk goes on."""

import pytest
import torch
from torch import nn

from fewbit.backends.eager.joining import Joining
from fewbit.backends.eager.tuning import steady
from fewbit.backends.torch_eager import view
from fewbit.model.points import Role
from tiny_models import transformer


def texts(shapes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [((), {"input_ids": torch.randint(3, 40, shape, generator=draw)}) for shape in shapes]


def walked(model, items, use):
    """Go through the model; `use` is called with each block's name and what can be tuned of it."""
    made = view(model)
    with made.walk(items) as walk:
        for block in walk.blocks:
            for _ in walk.through(block):
                pass
            with walk.tuning() as runner:
                use(block, runner, made)
    return made


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "qwen3_moe"])
def test_a_block_with_its_own_weights_answers_what_is_wanted(name):
    model = transformer(name, **({"num_hidden_layers": 2} if "moe" in name else {})).eval()
    items = texts([(2, 7), (2, 7), (1, 5), (2, 7), (1, 5)])
    met = []

    def use(block, runner, made):
        if not block:
            assert runner is None  # the rest hands nothing on
            return
        met.append(block)
        assert runner.items == (0, 1, 2, 3, 4)
        mine = made.points(lambda p: p.role is Role.weight and p.layer.startswith(f"{block}."))
        weights = {p.name: made.read(p) for p in mine}
        both = [2, 0, 3]
        found, wanted = runner.run(weights, both), runner.wanted(both)
        assert found.shape == wanted.shape == (5 + 14 + 14, 16)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        off = runner.run({mine[0].name: torch.zeros(mine[0].shape)}, both)
        assert not torch.allclose(off, wanted)

    walked(model, items, use)
    assert met


def test_slopes_by_finite_differences():
    model = transformer("gpt2").eval().double()  # its Conv1D lies the other way round

    def use(block, runner, made):
        if block != "transformer.h.1":
            return
        point = made.points(lambda p: p.role is Role.weight and p.layer == f"{block}.mlp.c_fc")[0]
        weight = made.read(point).clone()
        aim = torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def loss(value):
            return (runner.run({point.name: value}, [0, 1]) * aim).sum()

        with torch.enable_grad():
            leaf = weight.clone().requires_grad_()
            slope = torch.autograd.grad(loss(leaf), leaf)[0]
        for at in [(0, 0), (5, 3), (23, 15)]:
            moved = [weight.clone(), weight.clone()]
            moved[0][at] += 1e-6
            moved[1][at] -= 1e-6
            assert float(slope[at]) == pytest.approx(float(loss(moved[0]) - loss(moved[1])) / 2e-6, rel=1e-5, abs=1e-8)

    walked(model, texts([(1, 4), (1, 4)]), use)


def test_what_a_tuned_block_answers_is_what_the_next_one_reads():
    model = transformer("llama").eval()
    twin = transformer("llama").eval()
    items = texts([(2, 6)] * 3)
    with torch.no_grad():
        twin.model.layers[0].mlp.down_proj.weight.mul_(0.5)
        hidden = [twin(**item[1], output_hidden_states=True).hidden_states[1] for item in items]
    made = view(model)
    with made.walk(items) as walk:
        for block in walk.blocks[:2]:
            stages = walk.through(block)
            if block == "model.layers.1":
                reads = torch.cat([each.found for each in next(stages).inputs()])
                norm = model.model.layers[1].input_layernorm
                torch.testing.assert_close(reads, norm(torch.cat(hidden)).flatten(0, 1).detach())
            for _ in stages:
                pass
            if block == "model.layers.0":
                with walk.tuning():
                    point = made.points(lambda p: p.role is Role.weight and p.layer.endswith("0.mlp.down_proj"))[0]
                    made.write(point, made.read(point) * 0.5)


class Odd(nn.Module):
    """Adds the mean over what it takes for samples, so joined items disturb each other."""

    def forward(self, x, shift=None):
        return x + x.mean(0) if shift is None else x + shift


def test_calls_that_disturb_each_other_are_made_alone():
    calls = [((torch.randn(2, 3),), {}) for _ in range(4)]
    plain = [((call[0][0],), {"shift": torch.ones(3)}) for call in calls]
    other = [((call[0][0],), {"shift": torch.ones(3) * n}) for n, call in enumerate(calls)]
    for given, groups in ((calls, [[0], [1], [3]]), (plain, [[0, 1, 3]]), (other, [[0], [1], [3]])):
        joining = Joining(given, "0.0", lambda call: Odd()(*call[0], **call[1]))
        assert joining.groups([0, 1, 3]) == groups
        for group in groups:
            for item, answer in zip(group, joining.answers(group)):
                assert torch.equal(answer, Odd()(*given[item][0], **given[item][1]))


def test_steadiness_leaves_no_trace():
    before = torch.are_deterministic_algorithms_enabled()
    with steady(torch.device("cpu")):
        pass
    with pytest.raises(KeyError), steady(torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert torch.are_deterministic_algorithms_enabled() == before
