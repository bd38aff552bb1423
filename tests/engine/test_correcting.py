# SPDX-License-Identifier: Apache-2.0
"""Biases make up for rounding: exactly where it can be, never for the worse, the same for modules and graphs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fewbit
from fewbit import Config, ModelQuantizer, QuantizationConfig, QuantizationSpec
from fewbit.algorithms._members import algorithm
from fewbit.backends.eager.view import EagerView
from fewbit.data.drawing import SEED, seeded_order
from fewbit.engine.collect import is_held_out
from fewbit.engine.correcting import correct_fast, correct_slow
from fewbit.engine.inputs import watch_inputs
from fewbit.engine.nearness import nearness
from fewbit.engine.options import Options
from fewbit.model.points import Point, Role
from fewbit.model.watch import Watch
from fewbit.record import Record
from small_models import distance, opt, token_ids
from two_views import VIEWS, error, items_of, net, view_of

FAST, SLOW = algorithm("fast_bias_correction"), algorithm("bias_correction")
COARSE = Config(QuantizationConfig(weight=QuantizationSpec("int4", qscheme="per_channel", algorithm="rtn")))


def coarse(weight):
    """A weight cut to two bits, always downwards: as bad for means as can be."""
    step = weight.abs().max() / 2
    return (weight / step).floor() * step


def weights(view):
    return view.points(lambda p: p.role is Role.weight)


def rounded_twin(view):
    twin = view.copy()
    for point in weights(view):
        twin.write(point, coarse(view.read(point)))
    return twin


def means(view, items):
    """The mean output of each layer by channel, over all items."""
    found = {point.layer: [] for point in weights(view)}
    take = {layer: lambda known, _, layer=layer: found[layer].append(known) for layer in found}
    watch = {
        Point(p.layer, Role.output, p.op): Watch(frozenset({"sum", "count"}), take[p.layer]) for p in weights(view)
    }
    view.run(items, watch)
    return {layer: sum(k["sum"] for k in each) / sum(k["count"] for k in each) for layer, each in found.items()}


def fast(view, twin, items):
    points, record = weights(view), Record("test")
    watch, seen = watch_inputs(view, [p.layer for p in points], FAST.needs)
    view.run(items, watch)
    taps = {layer: each.taps for layer, each in seen.items()}
    return correct_fast(twin, FAST, points, view.read, twin.read, taps, record), record


@pytest.mark.parametrize("kind", VIEWS)
def test_fast_puts_the_mean_of_a_layer_right_whatever_its_padding_and_groups(kind):
    view, items = view_of(kind, net()), items_of(kind, 4)  # of four none is kept aside
    wanted = means(view, items)
    for point in weights(view):
        twin = view.copy()
        twin.write(point, coarse(view.read(point)))
        off = (means(twin, items)[point.layer] - wanted[point.layer]).abs().max()
        watch, seen = watch_inputs(view, [point.layer], FAST.needs)
        view.run(items, watch)
        taps = {point.layer: seen[point.layer].taps}
        shifts = correct_fast(twin, FAST, [point], view.read, twin.read, taps, Record("test"))
        assert shifts.keys() == {point.layer} and off > 0.01
        torch.testing.assert_close(means(twin, items)[point.layer], wanted[point.layer], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", VIEWS)
def test_slow_makes_every_layer_right_on_what_the_layers_before_it_give(kind):
    view, items, record = view_of(kind, net()), items_of(kind, 4), Record("test")
    twin, wanted = rounded_twin(view), means(view, items)
    before = error(view.answers(items), twin.answers(items))
    shifts = correct_slow(view, twin, SLOW, weights(view), items, record)
    assert list(shifts) == ["a", "b", "c"]
    for layer, mean in means(twin, items).items():
        torch.testing.assert_close(mean, wanted[layer], atol=1e-5, rtol=1e-5)
    assert error(view.answers(items), twin.answers(items)) < 0.5 * before
    assert [line["what"] for line in record.lines] == ["bias-corrected"] * 3


def test_both_views_are_corrected_by_the_same_amounts():
    shifts = {}
    for kind in VIEWS:
        view, items = view_of(kind, net()), items_of(kind, 10)
        shifts[kind] = [
            fast(view, rounded_twin(view), items)[0],
            correct_slow(view, rounded_twin(view), SLOW, weights(view), items, Record("test")),
        ]
    for eager, graph in zip(*shifts.values(), strict=True):
        assert eager.keys() == graph.keys() and eager
        for layer in eager:
            torch.testing.assert_close(eager[layer], graph[layer], atol=1e-5, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(-1, 1))
def test_no_layer_is_worse_on_the_items_kept_aside(seed, shift):
    torch.manual_seed(seed)
    view = EagerView(nn.Sequential(nn.Linear(6, 5)))
    items = [((torch.randn(3, 6) + shift,), {}) for _ in range(10)]
    twin = rounded_twin(view)
    aside = [item for index, item in enumerate(items) if is_held_out(index)]
    plain = error(view.answers(aside), twin.answers(aside))
    fast(view, twin, items)
    assert error(view.answers(aside), twin.answers(aside)) <= plain * (1 + 1e-5)


def trained(model, x, y):
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model.eval()


def mlp():
    torch.manual_seed(0)
    x = torch.rand(200, 16)
    y = torch.stack([x[:, :4].sum(1), (x[:, 4:8].sum(1) - 2).relu()], 1)
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 2)]
    return trained(nn.Sequential(*layers), x, y), x


def conv():
    torch.manual_seed(0)
    x = torch.rand(200, 2, 6, 6)
    y = torch.stack([x[:, 0].mean((1, 2)), x[:, 1].amax((1, 2))], 1)
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.ReLU()]
    return trained(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 2)), x, y), x


@pytest.mark.parametrize("make", [mlp, conv])
@pytest.mark.parametrize("how", ["fast_bias_correction", "bias_correction"])
@pytest.mark.parametrize("config", ["w8a8", COARSE], ids=["w8a8", "int4"])
def test_trained_networks_come_nearer_and_never_go_farther_on_items_kept_aside(make, how, config):
    model, x = make()
    items, unseen = x[:40].split(1), x[40:]
    order = seeded_order(len(items), len(items), None, seed=SEED)
    aside = [items[place] for index, place in enumerate(order) if is_held_out(index)]
    options = {"preset": config, "fast_bias_correction": how.startswith("fast")}
    plain = fewbit.quantize(model, items, **options, advanced_parameters={"correct": None, "exact": True})
    made = fewbit.quantize(model, items, **options, advanced_parameters={"exact": True})
    with torch.no_grad():
        wanted, ours, others = ([[each(item)] for item in aside] for each in (model, made, plain))
        assert nearness(wanted, ours)["error"] <= nearness(wanted, others)["error"] * (1 + 1e-5)
        if config is COARSE:
            assert distance(made(unseen), model(unseen)) < 0.9 * distance(plain(unseen), model(unseen))


def lines(record, what):
    return {line["where"]: line["reason"] for line in record.lines if line["what"] == what}


def test_quantize_corrects_by_default_and_the_quantizer_by_itself_does_not():
    model, x = mlp()
    record = fewbit.quantize(model, x[:40].split(2), preset=COARSE).fewbit_record
    assert set(lines(record, "bias-corrected")) == {"0", "4"} and "no bias" in lines(record, "bias-not-corrected")["2"]
    assert record.facts["correction"]["error"] < record.facts["correction"]["error_uncorrected"]
    assert all(line["held_out_mean_error"] <= line["held_out_mean_error_before"] for line in record.lines
               if line["what"] == "bias-corrected")  # fmt: skip
    record = fewbit.quantize(model, x[:40].split(2), preset=COARSE, fast_bias_correction=False).fewbit_record
    assert {line.get("algorithm") for line in record.lines if line["what"] == "bias-corrected"} == {"bias_correction"}
    quantizer = ModelQuantizer(COARSE)
    quantizer.quantize_model(model, x[:40].split(2))
    assert not {"bias-corrected", "bias-not-corrected"} & {line["what"] for line in quantizer.record.lines}


def test_what_was_corrected_is_exported_and_loaded(tmp_path):
    model, x = mlp()
    options = {"preset": COARSE, "advanced_parameters": {"exact": True}}
    folder = fewbit.quantize(model, x[:40].split(2), output=tmp_path / "made", **options)
    loaded, again = fewbit.load(folder, model=model), fewbit.quantize(model, x[:40].split(2), **options)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), again(x))
    assert not torch.equal(loaded[0].bias, model[0].bias)


def test_without_data_the_record_says_so():
    model, _ = mlp()
    record = fewbit.quantize(model, preset="w8a16").fewbit_record
    assert lines(record, "bias-not-corrected") == {None: "there is no calibration data"}


class Odd(nn.Module):
    """Layers whose output no bias of their own can shift."""

    def __init__(self):
        super().__init__()
        self.table, self.bare, self.full = nn.Embedding(9, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        x = self.full(self.bare(self.table(ids)))
        return self.attention(x, x, x)[0]


def test_layers_that_cannot_be_corrected_are_told_with_the_reason():
    torch.manual_seed(0)
    spec = QuantizationSpec("int4", qscheme="per_channel", algorithm="rtn")
    config = Config(
        QuantizationConfig(weight=spec, bias=QuantizationSpec("int8")),
        layer_type_quant_config={"Embedding": QuantizationConfig(weight=spec)},
    )
    record = fewbit.quantize(Odd().eval(), [torch.arange(8)[None]] * 3, preset=config).fewbit_record
    said = lines(record, "bias-not-corrected")
    words = {"table": "'embedding'", "bare": "no bias", "full": "codes already", "attention": "'attention'"}
    assert said.keys() == {*words, "attention.out_proj"}
    assert all(word in said[layer] for layer, word in words.items())


@pytest.mark.parametrize("how", ["fast_bias_correction", "bias_correction"])
def test_a_language_model_is_corrected_where_it_has_biases(how):
    model, ids = opt(layers=1), [{"input_ids": token_ids(2)}] * 6
    # With weights of 8 bits the shift is so small that the order of sums decides whether it helps.
    weight = {"dtype": "int4", "qscheme": "per_channel", "symmetric": True}
    inputs = {"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": False}
    quantizer = ModelQuantizer(Config(global_quant_config={"weight": weight, "input_tensors": inputs}))
    made = quantizer.quantize_view(EagerView(model), ids, options=Options(correct=how)).native()
    assert {"model.decoder.layers.0.fc1", "model.decoder.layers.0.self_attn.v_proj"} <= set(
        lines(quantizer.record, "bias-corrected")
    )
    assert "no bias" in lines(quantizer.record, "bias-not-corrected")["lm_head"]
    assert made(**ids[0]).logits.isfinite().all()


def test_what_takes_the_whole_model_farther_away_is_not_done(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom fewbit.algorithms._base import Shift\n\n"
        "def solve(problem):\n    return Shift(torch.full((len(problem.weight),), 9.0))\n\n"
        "solve.stage, solve.needs = 'correct', ('taps', 'windows')\n"
    )
    model, x = mlp()
    items = x[:40].split(2)
    made, plain = (
        fewbit.quantize(model, items, preset=COARSE, advanced_parameters={"correct": how})
        for how in (f"{own}:solve", None)
    )
    with torch.no_grad():
        assert torch.equal(made(x), plain(x))
    assert "farther" in lines(made.fewbit_record, "bias-not-corrected")[None]
    assert not lines(made.fewbit_record, "bias-corrected")


def test_an_algorithm_of_another_stage_is_refused():
    model, x = mlp()
    with pytest.raises(fewbit.UsageError, match="stage 'round'"):
        fewbit.quantize(model, x[:8].split(2), advanced_parameters={"correct": "rtn"})
