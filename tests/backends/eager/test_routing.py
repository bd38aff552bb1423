# SPDX-License-Identifier: Apache-2.0
"""Each expert of a stack is met with the tokens that were sent to it and no others, however the model computes it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fewbit.backends.eager.routing import meetings, stages
from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role
from tiny_models import transformer

NAMES = ("mixtral", "qwen3_moe", "gpt_oss")
WAYS = [(name, way) for name in NAMES for way in ("eager", "grouped_mm", "batched_mm")]


def items_for(count=4):
    draw, found = torch.Generator().manual_seed(0), []
    for index in range(count):
        ids = torch.randint(3, 40, (2, 7 + index), generator=draw)
        mask = torch.ones_like(ids)
        mask[0, :index] = 0
        found.append(((), {"input_ids": ids, "attention_mask": mask}))
    return found


def built(name, way="grouped_mm", dtype=torch.float32):
    more = {
        "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"]},
        "llama4": {"layer_types": ["full_attention"] * 2, "moe_layers": [0, 1], "no_rope_layers": [1, 1]},
    }.get(name, {})
    model = transformer(name, num_hidden_layers=2, **more).to(dtype)
    if name != "llama4":
        model.set_experts_implementation(way)
    return model.eval()


def given_to(model, layer, item):
    """What the experts' module of a model is called with."""
    found = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda m, args: found.append(args))
    with torch.no_grad():
        model(**item[1], use_cache=False)
    handle.remove()
    return found[0]


def hidden(model, layer, expert, x):
    """What the second matrix of an expert reads, by the formula of its paper."""
    module = model.get_submodule(layer)
    if "GptOss" in type(module).__name__:
        both = x @ module.gate_up_proj[expert] + module.gate_up_proj_bias[expert]
        gate, up = both[..., ::2].clamp(max=module.limit), both[..., 1::2].clamp(-module.limit, module.limit)
        return (up + 1) * gate * torch.sigmoid(gate * module.alpha)
    gate, up = (x @ module.gate_up_proj[expert].T).chunk(2, -1)
    return F.silu(gate) * up


def walked(model, items, factor=1.0):
    """Sums of xxᵀ and x'xᵀ by stack and expert; every weight is multiplied by a factor once its stage is over."""
    view, sums, counts = EagerView(model), {}, {}
    weights = view.points(lambda p: p.role is Role.weight)
    with view.walk(items) as walk:
        for block in walk.blocks:
            for stage in walk.through(block):
                for given in stage.inputs():
                    if given.expert is not None:
                        key = (stage.layers[0], given.expert)
                        x, y = given.found.double(), given.wanted.double()
                        old = sums.get(key, (0, 0))
                        sums[key] = (old[0] + x.T @ x, old[1] + y.T @ x)
                        counts[key] = counts.get(key, 0) + len(x)
                for point in weights:
                    if factor != 1 and {point.name, point.layer} & set(stage.layers):
                        view.write(point, view.read(point) * factor)
    return sums, counts


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_moments_are_those_of_the_tokens_of_each_expert(name, way):
    model, items, twin = built(name, way), items_for(), built(name, way)
    sums, counts = walked(model, items, factor=1.05)  # from here on the model is what it was made on the way
    checked = 0
    for index in (0, 1):
        layer = f"model.layers.{index}.mlp.experts"
        for expert in range(4):
            rows, floats = [], []
            for item in items:
                x, chosen, _ = given_to(model, layer, item)
                mine = (chosen == expert).any(-1) & item[1]["attention_mask"].bool().flatten()
                rows.append(x[mine])
                floats.append(given_to(twin, layer, item)[0][mine])
            x, y = torch.cat(rows), torch.cat(floats)
            if not len(x):
                assert (f"{layer}.gate_up_proj", expert) not in sums
                continue
            pairs = {
                "gate_up_proj": (x, y),
                "down_proj": (hidden(model, layer, expert, x), hidden(twin, layer, expert, y)),
            }
            for stack, (found, wanted) in pairs.items():
                key, found, wanted = (f"{layer}.{stack}", expert), found.double(), wanted.double()
                assert counts[key] == len(x)
                torch.testing.assert_close(sums[key][0], found.T @ found, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(sums[key][1], wanted.T @ found, rtol=1e-4, atol=1e-5)
                checked += 1
    assert checked >= 12


def test_zeros_that_stand_for_tokens_elsewhere_do_not_count():
    model, items = built("llama4"), items_for(2)
    items = [((), {"input_ids": item[1]["input_ids"]}) for item in items]
    sums, counts = walked(model, items)
    layer = "model.layers.0.feed_forward.experts"
    for expert in range(4):
        x = torch.cat([given_to(model, layer, item)[0].reshape(4, -1, 16)[expert] for item in items])
        x = x[(x != 0).any(1)].double()
        assert counts.get((f"{layer}.gate_up_proj", expert), 0) == len(x)
        if len(x):
            torch.testing.assert_close(sums[f"{layer}.gate_up_proj", expert][0], x.T @ x, rtol=1e-4, atol=1e-6)
    assert sum(counts[key] for key in counts if key[0] == f"{layer}.gate_up_proj") == sum(
        item[1]["input_ids"].numel() for item in items
    )


@pytest.mark.parametrize("way", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tells_hundreds_of_experts_apart(way, dtype):
    count = 300
    model = transformer("qwen3_moe", num_experts=count, num_experts_per_tok=3).to(dtype)
    model.set_experts_implementation(way)
    layer = model.model.layers[0].mlp.experts
    chosen = torch.randint(0, count, (40, 3), generator=torch.Generator().manual_seed(0))
    x = torch.randn(40, 16).to(dtype)
    met = meetings(layer, {"gate_up_proj": 0, "down_proj": 0}, (((x, chosen, torch.rand(40, 3).to(dtype))), {}))
    assert stages(met) == [("gate_up_proj",), ("down_proj",)]
    seen = {each.expert: each.rows for each in met if each.stack == "gate_up_proj"}
    assert sorted(seen) == chosen.unique().tolist()
    for expert, rows in seen.items():
        mine = x.repeat_interleave(3, 0)[chosen.flatten() == expert] if way != "eager" else x[(chosen == expert).any(1)]
        assert torch.equal(rows.sort(0).values, mine.sort(0).values)


class Separate(nn.Module):
    """Gate and up are stacks of their own; experts are chosen by a table, one of them never."""

    def __init__(self, own=lambda w, x: x @ w.mT):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.up, self.gate = (nn.Parameter(torch.randn(3, 6, 6, generator=draw)) for _ in range(2))
        self.down = nn.Parameter(torch.randn(3, 6, 6, generator=draw))
        self.own = own

    def forward(self, x):
        each = [self.own(self.down[e], self.own(self.gate[e], x) * self.own(self.up[e], x)) for e in (2, 0)]
        return each[0] + each[1]


@pytest.mark.parametrize(
    "own",
    [lambda w, x: x @ w.mT, lambda w, x: (w @ x.mT).mT, lambda w, x: torch.stack([w @ row for row in x]),
     lambda w, x: torch.einsum("oi,ti->to", w, x), lambda w, x: F.linear(x[None], w * 1)[0],
     lambda w, x: torch.addmm(torch.ones(6), x, w.T)],
)  # fmt: skip
def test_whatever_the_product_is_called(own):
    module, x = Separate(own), torch.randn(5, 6)
    met = meetings(module, dict.fromkeys(("up", "gate", "down"), 0), ((x,), {}))
    assert stages(met) == [("gate", "up"), ("down",)]
    assert {each.expert for each in met} == {0, 2}
    for stack in ("up", "gate"):
        for expert in (0, 2):
            rows = torch.cat([each.rows for each in met if (each.stack, each.expert) == (stack, expert)])
            assert torch.equal(rows, x)
    assert torch.equal(module.up, Separate().up)  # put back
