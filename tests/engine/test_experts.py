# SPDX-License-Identifier: Apache-2.0
"""Experts, in one tensor or each a layer of its own, settled for the tokens they were sent; few are named."""

import pytest
import torch
from tests.tiny_models import shaken, transformer
from torch import nn

import fewbit
from fewbit.algorithms._base import Problem
from fewbit.backends.eager.view import EagerView
from fewbit.engine.compression import compression
from fewbit.engine.journal import Journal
from fewbit.engine.planning import make_plan
from fewbit.engine.second_moments import Gathered
from fewbit.engine.settling import Settling
from fewbit.model.walking import Inputs
from fewbit.record import Record

GPTQ = {"mode": "int4_sym", "group_size": 8, "algorithm": "gptq"}


def texts(count, seed=0, length=24):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 40, (2, length), generator=draw)} for _ in range(count)]


def off(model, made, items):
    """What the answers are off, over what they are."""
    with torch.no_grad():
        pairs = [(model(**item).logits.double(), made(**item).logits.double()) for item in items]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))


def lines(model, what):
    return {line["where"]: line for line in model.fewbit_record.lines if line["what"] == what}


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_answers_are_nearer_than_those_of_the_search(name):
    model = transformer(name).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    # What attention becomes sends tokens to other experts of a random router, and hides what these become.
    scope = fewbit.IgnoredScope(patterns=[".*self_attn.*", ".*lm_head", ".*embed_tokens"])
    made = {
        algorithm: fewbit.compress_weights(
            model, **{**GPTQ, "algorithm": algorithm}, dataset=texts(20), ignored_scope=scope
        )
        for algorithm in ("scale_search", "gptq")
    }
    errors = {algorithm: off(model, each, texts(6, seed=9)) for algorithm, each in made.items()}
    assert errors["gptq"] < 0.7 * errors["scale_search"]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    stacks = {where: line for where, line in lines(made["gptq"], "quantized").items() if "experts" in where}
    assert len(stacks) == 2
    for line in stacks.values():
        assert "fallback" not in line and line["held_out_output_error_saved"] > 0
    assert not lines(made["gptq"], "few-tokens")


@pytest.mark.parametrize("mode", ["int4_asym", "nvfp4", "mxfp4", "int8_sym"])
def test_an_expert_gets_the_codes_that_it_would_get_alone(mode):
    model = transformer("mixtral").eval()
    view = EagerView(model)
    plan = make_plan(view, compression(view, mode, algorithm="gptq", data=True))
    w = next(w for w in plan.weights if w.point.name.endswith("gate_up_proj"))
    weight, seen, draw = view.read(w.point), Gathered(), torch.Generator().manual_seed(0)
    sent = {0: 40, 2: 30, 3: 2}  # to number one nothing
    for item in range(6):
        for expert, count in sent.items():
            x = torch.randn(count, 16, generator=draw) @ torch.randn(16, 16, generator=draw)
            seen.add(Inputs(item, x, x + 0.1 * torch.randn(count, 16, generator=draw), expert=expert))
    assert seen.tokens == 0 and seen.experts[0].tokens == 200  # of five items one is kept aside
    settling = Settling(view, plan, Record("test"))
    found = settling._solved(w, seen)
    together = Gathered()
    for each in seen.experts.values():
        together.absorb(each.copy())
    assert found.facts["few_tokens"] == [[1, 0]]
    for expert in range(4):
        mine = seen.experts[expert] if expert != 1 else together
        sides = []
        for aside in (False, True):
            sums = mine.sides[aside]
            sides.append({
                "gram": {"gram": sums.gram, "count": sums.count},
                "wanted": {"wanted": weight[expert] @ sums.cross},
                "moments": {"sum": sums.sum, "square": sums.gram.diagonal().double(), "count": sums.count},
            })  # fmt: skip
        importance = [(s["moments"]["square"] / s["moments"]["count"]).float().reshape(1, -1) for s in sides]
        problem = Problem(
            weight[expert], w.grid, w.block[1:], *importance, *sides, super_scale=found.qtensor.super_scale
        )
        alone = w.algorithm.solve(problem, **w.parameters).qtensor
        assert torch.equal(found.qtensor.codes()[expert], alone.codes())
        assert torch.equal(found.qtensor.dequantize()[expert], alone.dequantize())


def test_an_expert_without_tokens_is_named_and_settled_for_those_of_all():
    model = transformer("gpt_oss").eval()
    model.model.layers[0].mlp.router.bias.data[2] = -1e4
    made = fewbit.compress_weights(model, **GPTQ, dataset=texts(12))
    told = lines(made, "few-tokens")
    for stack in ("gate_up_proj", "down_proj"):
        where = f"model.layers.0.mlp.experts.{stack}"
        assert told[where]["tokens"] == [[2, 0]]
        assert "fallback" not in lines(made, "quantized")[where]
    assert off(model, made, texts(4, seed=9)) < 0.1


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)

    def forward(self, x):
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x))


class Routed(nn.Module):
    """A block whose experts are layers of their own; token number t goes to expert t % count, but for the last two."""

    def __init__(self, width=16, count=6):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.experts = nn.ModuleList(Expert(width) for _ in range(count))

    def forward(self, x, ids):
        x = x + self.mix(x)
        out = torch.zeros_like(x)
        chosen = ids % 4 + (ids == 39) * (4 - 39 % 4)  # number 5 never, number 4 for one rare token
        for number in chosen.unique().tolist():
            mine = chosen == number
            out[mine] = self.experts[number](x[mine])
        return x + out


class Separate(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(Routed() for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, input_ids)
        return self.head(x)


def rare(count=12):
    """Token 39 comes in the last of the items only, once, so that few items do not show the fifth expert."""
    found = [{"input_ids": torch.where(item["input_ids"] == 39, 38, item["input_ids"])} for item in texts(count)]
    found[-1]["input_ids"][0, 0] = 39
    return found


def test_experts_that_are_layers_of_their_own():
    torch.manual_seed(0)
    model = shaken(Separate())
    made = fewbit.compress_weights(model, **GPTQ, dataset=rare())
    told = lines(made, "few-tokens")
    assert not lines(made, "not-reached")
    for block in (0, 1):
        for part in ("gate", "up", "down"):
            assert told[f"layers.{block}.experts.4.{part}.weight"]["tokens"] == 1
            assert told[f"layers.{block}.experts.5.{part}.weight"]["tokens"] == 0
    assert len(told) == 12
    quantized = lines(made, "quantized")
    assert all("fallback" not in quantized[where] for where in told)
    assert type(made.layers[0].experts[5].up).__name__ != "Linear"


def test_a_run_that_was_stopped_gives_the_same(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model, write, left = shaken(Separate()), Journal.write, [0]
    fewbit.compress_weights(model, **GPTQ, dataset=rare(), output=tmp_path / "whole")

    def stopping(self, name, solution):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write(self, name, solution)

    monkeypatch.setattr(Journal, "write", stopping)
    stops = 0
    for limit in (3, 9, 7, 8, 2, 100):
        left[0] = limit
        try:
            fewbit.compress_weights(model, **GPTQ, dataset=rare(), output=tmp_path / "stopped")
            break
        except KeyboardInterrupt:
            stops += 1
    whole, stopped = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.safetensors")}
        for name in ("whole", "stopped")
    )
    assert stops > 2 and whole == stopped


@pytest.mark.parametrize(
    ("build", "items"),
    [
        (lambda: transformer("gpt_oss").eval(), rare()),
        (lambda: shaken(Separate()), rare()),
        (lambda: shaken(Separate()), texts(2, length=3)),  # too few for any expert, also for the one with the most
    ],
)
def test_from_a_store_without_data(build, items, tmp_path):
    torch.manual_seed(0)
    model = build()
    first = fewbit.compress_weights(model, **GPTQ, dataset=items, statistics=tmp_path / "s")
    again = fewbit.compress_weights(model, **GPTQ, statistics=tmp_path / "s")
    assert lines(first, "few-tokens") == lines(again, "few-tokens")
    a, b = first.state_dict(), again.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
