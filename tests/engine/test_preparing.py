# SPDX-License-Identifier: Apache-2.0
"""Channels are evened out before rounding: the model computes the same, what is rounded later loses less."""

from __future__ import annotations

import pytest
import torch

import fewbit
from fewbit import Config, ModelQuantizer, QuantizationConfig, QuantizationSpec, UsageError
from fewbit.algorithms._members import algorithm
from fewbit.engine.carrying import carry_over
from fewbit.engine.collect import collect
from fewbit.engine.inputs import watch_inputs
from fewbit.engine.options import Options
from fewbit.engine.planning import make_plan
from fewbit.engine.preparing import prepare
from fewbit.model.points import Role
from fewbit.numerics.qtensor import QTensor
from fewbit.observers.gram import GramObserver
from fewbit.record import Record
from small_models import distance, opt, token_ids
from two_views import VIEWS, error, items_of, net, view_of

EQUALIZE, SMOOTH = algorithm("equalization"), algorithm("smooth_quant")
PER_TENSOR = QuantizationSpec("int8", algorithm="rtn")


def config(weight=PER_TENSOR, observer=None, **more):
    reads = QuantizationSpec("uint8", symmetric=False, observer_cls=observer)
    return Config(QuantizationConfig(weight=weight, input_tensors=reads, **more))


def prepared(kind, solvers, items, chosen=None, spread=3.0):
    """A view of a network with badly scaled channels, prepared, with what was seen, done and said."""
    view = view_of(kind, net(spread=spread))
    plan, record = make_plan(view, chosen or config()), Record("test")
    watch, seen = watch_inputs(view, "abc", EQUALIZE.needs)
    statistics = collect(view, plan, items, watch)
    factors = prepare(view, plan, solvers, view.structure(items[0]).links, seen, record).factors
    return view, plan, statistics, factors, seen, record


def rounded(view, plan):
    twin = view.copy()
    for planned in plan.weights:
        weight = twin.read(planned.point)
        solution = planned.algorithm.solve(_problem(weight, planned))
        assert isinstance(solution.qtensor, QTensor)
        twin.write(planned.point, solution.qtensor.dequantize())
    return twin


def _problem(weight, planned):
    return planned.algorithm.problem(weight, planned.grid, planned.block)


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("solvers", [[EQUALIZE], [SMOOTH], [EQUALIZE, SMOOTH]], ids=["equalize", "smooth", "both"])
def test_the_answers_stay_and_rounding_costs_less(kind, solvers):
    items = items_of(kind, 6)
    plain = view_of(kind, net(spread=3.0))
    wanted = list(plain.answers(items))
    view, plan, _, factors, _, record = prepared(kind, solvers, items)
    assert error(wanted, view.answers(items)) < 1e-10
    assert set(factors) == {"b", "c"} and len(factors["c"]) == 32
    assert error(wanted, rounded(view, plan).answers(items)) < 0.2 * error(wanted, rounded(plain, plan).answers(items))
    assert {line["where"] for line in record.lines if line["what"] == "scaled"} == {"a", "b"}


def test_both_views_are_scaled_alike():
    made = [prepared(kind, [EQUALIZE, SMOOTH], items_of(kind, 6))[3] for kind in VIEWS]
    for layer in ("b", "c"):
        torch.testing.assert_close(made[0][layer], made[1][layer], rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", VIEWS)
def test_what_was_seen_is_divided_as_a_second_pass_would_see_it(kind):
    items = items_of(kind, 6)
    view, plan, statistics, factors, seen, _ = prepared(kind, [EQUALIZE], items)
    again = carry_over(statistics, plan, factors, seen)
    assert not again.weights and not again.activations
    watch, fresh = watch_inputs(view, "abc", EQUALIZE.needs)
    second = collect(view, plan, items, watch)
    for layer, now in fresh.items():
        for name in ("low", "high", "square"):
            torch.testing.assert_close(
                getattr(seen[layer], name).double(), getattr(now, name).double(), rtol=1e-4, atol=1e-6
            )
    for point, observer in second.ranges.items():
        carried = statistics.ranges[point]
        assert carried.parameters == observer.parameters
        torch.testing.assert_close(torch.stack(carried.range(None)), torch.stack(observer.range(None)))


def test_taps_and_second_moments_are_divided_too():
    items = items_of("eager", 6)
    weight = QuantizationSpec("int8", qscheme="per_channel", algorithm="adaround")
    view = view_of("eager", net(spread=3.0))
    plan = make_plan(view, config(weight))
    watch, seen = watch_inputs(view, "abc", [*EQUALIZE.needs, "taps", "windows"])
    statistics = collect(view, plan, items, watch)
    factors = prepare(view, plan, [EQUALIZE], view.structure(items[0]).links, seen, Record("test")).factors
    assert factors and not carry_over(statistics, plan, factors, seen).weights
    for layer, by in factors.items():
        seen[layer].divide(torch.ones_like(by))
    watch, fresh = watch_inputs(view, "abc", ["taps", "windows"])
    second = collect(view, plan, items, watch)
    assert any(isinstance(each, GramObserver) for found in second.inputs.values() for each in found.values())
    for layer, found in second.inputs.items():
        for name, observer in found.items():
            for part, tensor in observer.state().items():
                torch.testing.assert_close(statistics.inputs[layer][name].state()[part], tensor, rtol=1e-4, atol=1e-8)
        for aside, taps in fresh[layer].taps.items():
            torch.testing.assert_close(seen[layer].taps[aside].mean, taps.mean, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("observer", [None, "percentile", "moving_average"])
def test_quantize_prepares_and_finds_ranges_of_the_prepared_model(observer):
    model, items = net(spread=3.0), [x[0][0] for x in items_of("eager", 10)]
    plain = fewbit.quantize(model, items, preset=config(observer=observer))
    made = fewbit.quantize(
        model, items, preset=config(observer=observer), advanced_parameters={"prepare": ["equalization"]}
    )
    x = torch.cat(items)
    with torch.no_grad():
        assert distance(made(x), model(x)) < 0.5 * distance(plain(x), model(x))
    again = [line["where"] for line in made.fewbit_record.lines if line["what"] == "second-pass"]
    assert again == ([] if observer is None else ["b:input, c:input"])


def test_outputs_and_caches_are_looked_at_again():
    model, ids = opt(layers=1), [{"input_ids": token_ids(2)}] * 6
    with torch.no_grad():  # channels that stand out: evening them out brings the answers nearer
        block = model.model.decoder.layers[0]
        block.final_layer_norm.weight[3] *= 50
        block.fc1.weight[:, 3] /= 50
    chosen = config(output_tensors=QuantizationSpec("int8"))
    quantizer = ModelQuantizer(chosen)
    made = quantizer.quantize_view(
        fewbit.engine.run.view_of(model), ids, options=Options(prepare=("equalization", "smooth_quant"))
    ).native()
    scaled = {line["where"] for line in quantizer.record.lines if line["what"] == "scaled"}
    assert scaled
    with torch.no_grad():
        assert distance(made(**ids[0]).logits, model(**ids[0]).logits) < 0.2
    (again,) = (line for line in quantizer.record.lines if line["what"] == "second-pass")
    assert "fc1:output" in again["where"] and "fc1:input" not in again["where"]


def test_links_that_nothing_is_gained_by_are_left_alone_and_told():
    items = items_of("eager", 6)
    chosen = Config(QuantizationConfig(weight=QuantizationSpec("int8", qscheme="per_channel")))
    *_, factors, _, record = prepared("eager", [EQUALIZE], items, chosen.excluding(["a", "b", "c"]), spread=0.0)
    assert not factors
    assert {line["reason"] for line in record.lines} == {"nothing at either end is quantized"}
    view = view_of("eager", net())
    assert not prepare(view, make_plan(view, config()), [EQUALIZE], view.structure(items[0]).links, {}, record).steps
    assert record.lines[-1]["reason"] == "no calibration sample reached its consumers"


def test_an_algorithm_of_another_stage_is_refused():
    with pytest.raises(UsageError, match="stage 'round'"):
        fewbit.quantize(net(), [torch.rand(1, 2, 2, 2)], advanced_parameters={"prepare": ["rtn"]})


def test_without_data_the_record_says_so():
    made = fewbit.quantize(net(), preset="w8a16", advanced_parameters={"prepare": ["equalization"]})
    assert {line["what"] for line in made.fewbit_record.lines} >= {"not-scaled", "bias-not-corrected"}


def test_inputs_that_nobody_asks_about_are_not_watched():
    view = view_of("eager", net())
    assert watch_inputs(view, "abc", ()) == ({}, {})
    assert {p.layer for p in watch_inputs(view, "ab", EQUALIZE.needs)[0] if p.role is Role.input} == {"a", "b"}
