# SPDX-License-Identifier: Apache-2.0
"""One pass for everybody who asks something about an activation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fewbit import Config, DataError, QuantizationConfig, QuantizationSpec, plan
from fewbit.engine.collect import HELD_OUT_EVERY, Statistics, collect, is_held_out
from fewbit.engine.run import view_of
from fewbit.model.points import Role
from fewbit.model.watch import Watch
from fewbit.observers.min_max import MinMaxObserver
from small_models import images, mixed

PER_TENSOR = {"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": False}


class Clamped(MinMaxObserver):
    """An observer of the user's own, which has to see the values."""

    def measure(self, rows):
        return super().measure(rows.clamp(-0.5, 0.5))


def planned(model, **input_spec):
    weight = QuantizationSpec("int4", qscheme="per_channel", ch_axis=0, algorithm="scale_search")
    spec = QuantizationSpec(**{**PER_TENSOR, **input_spec})
    return plan(model, config=Config(QuantizationConfig(weight=weight, input_tensors=spec)), time=False)


def items(count=7):
    return [((x,), {}) for x in images(count)]


def by_hook(model, layer, given):
    """Everything a layer reads, by a hook of the test's own: one tensor an item."""
    seen = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with torch.no_grad():
        for args, _ in given:
            model(*args)
    handle.remove()
    return seen


@pytest.mark.parametrize("observer", ["min_max", "moving_average", "mse", "percentile", Clamped])
def test_ranges_are_those_of_the_values(observer):
    model, given = mixed(), items()
    made = planned(model, observer_cls=observer)
    found = collect(view_of(model), made, given)
    assert found.items == len(given) and len(found.ranges) == len(made.static) >= 2
    for activation in made.static:
        expected = type(found.ranges[activation.point])()
        for x in by_hook(model, activation.point.layer, given):
            expected.observe(x.reshape(1, -1))
        for ours, theirs in zip(found.ranges[activation.point].range(activation.grid), expected.range(activation.grid)):
            torch.testing.assert_close(ours, theirs)


def test_only_who_needs_values_is_shown_them(monkeypatch):
    model = mixed()
    view, asked = view_of(model), {}
    own = view.run

    def run(given, watch):
        asked.update({point.layer: watched.needs for point, watched in watch.items()})
        return own(given, watch)

    monkeypatch.setattr(view, "run", run)
    collect(view, planned(model), items())
    assert set(asked.values()) == {frozenset({"low", "high", "sum", "square", "count"})}
    collect(view, planned(model, observer_cls="mse"), items())
    assert set(asked.values()) == {frozenset({"values", "sum", "square", "count"})}


def test_statistics_of_inputs_and_of_items_kept_aside():
    model, given = mixed(), items(11)
    found = collect(view_of(model), planned(model), given)
    seen = by_hook(model, "conv", given)
    for kept, aside in ((found.inputs, False), (found.held_out, True)):
        x = torch.cat([x for i, x in enumerate(seen) if is_held_out(i) is aside]).movedim(1, 0).flatten(1)
        state = kept["conv"]["moments"].state()
        torch.testing.assert_close(state["sum"], x.double().sum(1))
        torch.testing.assert_close(state["square"], x.double().square().sum(1))
        assert int(state["count"]) == x.shape[1]
    assert sum(map(is_held_out, range(10 * HELD_OUT_EVERY))) == 10


def test_whoever_else_asks_rides_along():
    model, given, told = mixed(), items(), []
    view = view_of(model)
    points = view.points(lambda p: p.role in (Role.input, Role.output))
    needs = {Role.input: {"taps", "windows", "low"}, Role.output: {"sum", "count"}}
    extra = {p: Watch(frozenset(needs[p.role]), lambda known, i, p=p: told.append((p, dict(known), i))) for p in points}
    made = planned(model)
    found = collect(view, made, given, extra)
    alone = collect(view, made, given)
    assert [i for p, _, i in told if p == points[0]] == list(range(len(given)))
    assert all(needs[p.role] <= known.keys() for p, known, _ in told)
    for point, observer in alone.ranges.items():
        assert all(map(torch.equal, observer.state().values(), found.ranges[point].state().values()))
    only = planned(nn.Sequential(nn.ReLU()))
    told.clear()
    assert isinstance(collect(view, only, given, extra), Statistics) and len(told) == len(given) * len(points)


@pytest.mark.parametrize("observer", ["min_max", "mse"])
def test_what_is_not_finite_is_named_with_every_layer_and_its_first_item(observer):
    model, given = mixed(), items()
    given[3][0][0][0, 1, 2, 2] = torch.nan
    given[5][0][0][0, 0, 0, 0] = torch.inf
    with pytest.raises(DataError, match="not finite") as caught:
        collect(view_of(model), planned(model, observer_cls=observer), given)
    assert "conv:input from item 3 on" in str(caught.value)
    assert ("1 NaN, 1 +inf" if observer == "mse" else "NaN and +inf") in str(caught.value)


def test_what_only_others_asked_is_guarded_too():
    model, given = mixed(), items()
    given[2][0][0][0, 1, 2, 2] = torch.nan
    view = view_of(model)
    (point,) = view.points(lambda p: p.layer == "conv" and p.role is Role.input)
    with pytest.raises(DataError, match="conv:input from item 2 on"):
        collect(view, planned(nn.ReLU()), given, {point: Watch(frozenset({"taps"}), lambda known, i: None)})
