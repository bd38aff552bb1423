# SPDX-License-Identifier: Apache-2.0
"""Weights settled for inputs as they will be rounded: moments of rounded inputs, activations put in place on a walk."""

import pytest
import torch
from tests.tiny_models import transformer

import fewbit
from fewbit.engine.lanes import Lanes
from fewbit.engine.plan import WeightPlan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.rounded_inputs import RoundedInputs
from fewbit.engine.workers import Workers
from fewbit.errors import DataError, UsageError
from fewbit.model.points import Point, Role
from fewbit.model.walking import Inputs
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.schemes.presets import preset

TOKEN = Grid(Dtype.int8, QSchemeType.per_token)
LLAMA = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def texts(count, seed=0, length=24):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 40, (2, length), generator=draw)} for _ in range(count)]


def off(model, made, items):
    """What the answers are off, over what they are."""
    with torch.no_grad():
        pairs = [(model(**item).logits.double(), made(**item).logits.double()) for item in items]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs))


class Stage:
    """Two items of random numbers."""

    layers = ("a", "b", "c")

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.items = [torch.randn(5, 8, generator=draw) for _ in range(2)]

    def inputs(self):
        return iter([Inputs(index, x, x + 1) for index, x in enumerate(self.items)])


def weight(layer):
    point = Point(layer, Role.weight, None, "weight", (4, 8))
    return WeightPlan(point, None, None, (1, 8), None, {}, "")


def reading(layer):
    return Point(layer, Role.input, None, feeds=("weight",))


def by_token(x):
    """Int8 with a scale a row, by a formula of its own."""
    scale = x.abs().amax(1, keepdim=True) / 127.5
    return (x / scale).round().clamp(-128, 127) * scale


def test_moments_are_of_rounded_inputs_and_layers_that_round_alike_share_them():
    fixed = QParams(Grid(Dtype.int8), (1,), torch.tensor([0.125]), None)
    how = {reading("a"): TOKEN, reading("c"): fixed, Point("b", Role.output, None): TOKEN}
    rounding, stage = RoundedInputs(how), Stage()
    weights = [weight("a"), weight("b"), weight("c"), weight("a")]
    groups = rounding.groups(weights)
    assert [[w.point.layer for w in group] for group in groups] == [["a", "a"], ["b"], ["c"]]
    found = rounding.gather(stage, groups, Lanes(2, Workers()), lambda point: torch.zeros(4, 8))
    read = [by_token, lambda x: x, lambda x: (x / 0.125).round().clamp(-128, 127) * 0.125]
    for seen, change in zip(found, read):
        x, wanted = torch.cat([change(x) for x in stage.items]), torch.cat(stage.items) + 1
        torch.testing.assert_close(seen.sides[False].gram, x.T @ x)
        torch.testing.assert_close(seen.sides[False].cross, wanted.T @ x)


def test_what_is_not_finite_is_refused():
    stage = Stage()
    stage.items[1][0, 0] = torch.inf
    rounding = RoundedInputs({reading("a"): TOKEN})
    with pytest.raises(DataError, match="not finite"):
        rounding.gather(stage, rounding.groups([weight("a")]), Lanes(2, Workers()), lambda point: torch.zeros(4, 8))


W4_STATIC = {"dtype": "int4", "qscheme": "per_group", "group_size": 16}
CASES = {
    "int8 by token": ("w4a8_dynamic", {"group_size": 16}),
    "int8 fixed": ("w8a8", W4_STATIC),
    "mxfp4": ("mxfp4", {}),
    "fp8 fixed": ("fp8", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_nearer_than_those_of_the_search(case):
    name, changes = CASES[case]
    model = transformer("llama", **LLAMA).eval()
    errors = {}
    for algorithm in ("scale_search", "gptq"):
        made = fewbit.quantize(model, texts(20), preset=preset(name, algo_config=algorithm, **changes))
        errors[algorithm] = off(model, made, texts(6, seed=9))
        quantized = [layer for layer in made.modules() if isinstance(layer, torch.nn.Linear)]
        assert all(layer.input_quantizer is not None for layer in quantized)
        noted = [line for line in made.fewbit_record.lines if line["what"] == "activation"]
        assert len(noted) == len(quantized) == 15
    assert errors["gptq"] < 0.8 * errors["scale_search"]


def test_ranges_are_those_of_the_float_model():
    model, config = transformer("llama", **LLAMA).eval(), preset("w8a8", **W4_STATIC)
    scales = []
    for algorithm in ("scale_search", "gptq"):
        made = fewbit.quantize(model, texts(6), preset=preset("w8a8", algo_config=algorithm, **W4_STATIC))
        scales.append([layer.input_quantizer.scale for layer in made.modules() if isinstance(layer, torch.nn.Linear)])
    assert all(torch.equal(a, b) for a, b in zip(*scales, strict=True))
    assert config.algo_config is None


def test_a_run_goes_on_with_activations(tmp_path, monkeypatch):
    """Stopped after a few weights, the same command gives the same model."""
    from fewbit.engine.journal import Journal

    model, config = transformer("llama", **LLAMA).eval(), preset("mxfp4", exclude=["lm_head"], algo_config="gptq")
    whole = fewbit.quantize(model, texts(6), preset=config, output=tmp_path / "whole")
    wrote, count = Journal.write, []

    def failing(self, *args):
        count.append(1)
        if len(count) > 5:
            raise KeyboardInterrupt
        wrote(self, *args)

    monkeypatch.setattr(Journal, "write", failing)
    with pytest.raises(KeyboardInterrupt):
        fewbit.quantize(model, texts(6), preset=config, output=tmp_path / "again")
    monkeypatch.setattr(Journal, "write", wrote)
    again = fewbit.quantize(model, texts(6), preset=config, output=tmp_path / "again")
    first, second = ((folder / "fewbit.safetensors").read_bytes() for folder in (whole, again))
    assert first == second


def test_no_statistics_are_kept_of_rounded_inputs(tmp_path):
    quantizer, model = ModelQuantizer(preset("mxfp4", algo_config="gptq")), transformer("llama", **LLAMA).eval()
    from fewbit.engine.run import view_of

    with pytest.raises(UsageError, match="weights alone"):
        quantizer.quantize_view(view_of(model), texts(2), model=model, statistics=tmp_path / "s")
