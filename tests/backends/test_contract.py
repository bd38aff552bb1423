# SPDX-License-Identifier: Apache-2.0
"""Every backend the registry lists keeps the contract of `_base`, and its view that of `ModelView`."""

import inspect
import subprocess
import sys

import pytest
import torch

from backends.examples import EXAMPLES
from fewbit import registry
from fewbit.errors import UsageError
from fewbit.model.ops import CACHE
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.model.watch import Watch
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import codes, rounded

BACKENDS = registry.names("backends")
OPTIONAL = {"structure", "rescale", "shift", "edges", "place", "save", "walk", "rotate", "gradients"}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_member_has_the_two_functions_and_a_summary(name):
    member = registry.get("backends", name)
    assert list(inspect.signature(member.accepts).parameters) == ["model"]
    assert list(inspect.signature(member.view).parameters) == ["model"]
    assert registry.summary("backends", name)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("model", [None, 3, "model.xyz", object(), {"weight": 1}])
def test_nobody_takes_what_is_no_model(name, model):
    assert not registry.get("backends", name).accepts(model)


def test_asking_imports_no_framework():
    asks = "registry.get('backends', 'torch_eager').accepts(3)"
    code = f"import sys; from fewbit import registry; {asks}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_backend_of_ours_has_an_example():
    assert {name for name in BACKENDS if registry.is_built_in("backends", name)} <= set(EXAMPLES)


@pytest.fixture(params=[name for name in BACKENDS if name in EXAMPLES])
def example(request):
    return request.param, EXAMPLES[request.param]


@pytest.fixture
def view(example):
    name, it = example
    model = it.make()
    assert registry.get("backends", name).accepts(model)
    return registry.get("backends", name).view(model)


def weights(view):
    return view.points(lambda p: p.role is Role.weight)


def answers(example, view):
    return [example[1].answer(view.native(), item) for item in example[1].items]


def test_the_view_has_every_verb_of_the_protocol(view):
    for name, verb in inspect.getmembers(ModelView, inspect.isfunction):
        if not name.startswith("_") and (name in view.can or name not in OPTIONAL):
            ours = inspect.signature(getattr(type(view), name)).parameters
            assert list(ours) == list(inspect.signature(verb).parameters), name
    assert view.can <= OPTIONAL
    assert view.notes == [] and view.quantized() == []


def test_points_have_a_name_of_their_own_and_say_what_reading_gives(view):
    points = view.points()
    assert len({p.name for p in points}) == len(points) and len(weights(view)) >= 2
    for p in points:
        if p.role in (Role.weight, Role.bias):
            tensor = view.read(p)
            assert tuple(tensor.shape) == p.shape and str(tensor.dtype) == f"torch.{p.dtype}" and p.name in p.users
        assert all(f"{p.layer}.{tensor}".lstrip(".") in {w.name for w in weights(view)} for tensor in p.feeds)
    some = view.points(lambda p: p.role is Role.input)
    assert some == [p for p in points if p.role is Role.input]
    assert view.size() >= sum(view.read(p).nbytes for p in weights(view))


def test_every_layer_can_be_named(view):
    layers = view.layers()
    with_points = {p.layer for p in view.points() if p.op is not CACHE}
    assert with_points | {layer for layer, _ in view.skipped()} < set(layers), "layers without points are there too"
    assert all(types and view.types(layer) == types for layer, types in layers.items())
    with pytest.raises(UsageError, match=r"no (layer|node) 'nobody'"):
        view.types("nobody")


def inputs(view):
    return view.points(lambda p: p.role is Role.input)


def outputs(view):
    """What every layer with a weight gives; a view need not list it to be able to tell about it."""
    return [Point(w.layer, Role.output, w.op) for w in weights(view)]


def told(example, view, points, *needs, sample=1024):
    """What a run tells about some points: `{layer: [found]}`, in the order of the items."""
    seen = {point.layer: [] for point in points}

    def watch(layer):
        def take(found, item):
            assert item == len(seen[layer]), "each item once, in order"
            seen[layer].append(dict(found))

        return Watch(frozenset(needs), take, sample)

    assert view.run(example[1].items, {point: watch(point.layer) for point in points}) == len(example[1].items)
    assert all(len(found) == len(example[1].items) for found in seen.values())
    return seen


def test_a_run_shows_positions_by_features_and_changes_nothing(example, view):
    before = answers(example, view)
    seen = told(example, view, inputs(view), "values")
    assert seen
    for layer, found in seen.items():
        (w,) = (w for w in weights(view) if w.layer == layer)
        assert {each["values"].shape[1:] for each in found} == {(w.shape[w.stack + 1] * w.groups,)}
    assert all(map(torch.equal, before, answers(example, view)))
    view.run([], {})
    assert all(isinstance(where, str) and isinstance(what, str) for where, what in view.notes)


def test_a_view_gives_the_models_answers(example, view):
    for expected, found in zip(answers(example, view), view.answers(example[1].items), strict=True):
        assert any(x.shape == expected.shape and torch.allclose(x, expected, atol=1e-5) for x in found)


@pytest.mark.parametrize("place", [inputs, outputs], ids=["inputs", "outputs"])
def test_what_is_asked_about_values_is_true_of_them(example, view, place):
    asked = ("low", "high", "sum", "square", "count", "sample")
    with_values, without = (
        told(example, view, place(view), "values", *asked),
        told(example, view, place(view), *asked, sample=5),
    )
    for layer, found in without.items():
        for known, shown in zip(found, with_values[layer], strict=True):
            x = shown["values"].double()
            assert set(asked) <= known.keys() and x.ndim == 2
            expected = {"low": x.amin(0), "high": x.amax(0), "sum": x.sum(0), "square": x.square().sum(0)}
            for name, truth in expected.items():
                torch.testing.assert_close(known[name].double(), truth, rtol=1e-5, atol=1e-5)
            assert known["sum"].dtype is known["square"].dtype is torch.float64
            assert known["count"].ndim == 0 and int(known["count"]) == len(x)
            values = set(x.flatten().tolist())
            assert min(5, x.numel()) <= known["sample"].numel() and set(known["sample"].double().tolist()) <= values
            assert shown["sample"].numel() == x.numel(), "fewer than were asked for: all"


def test_taps_and_the_weight_give_the_mean_output_but_for_the_bias(example, view):
    read, gave = (
        told(example, view, inputs(view), "taps", "windows"),
        told(example, view, outputs(view), "sum", "count"),
    )
    for w in weights(view):
        rest = []
        for known, out in zip(read[w.layer], gave[w.layer], strict=True):
            groups = zip(view.read(w).double().chunk(w.groups), known["taps"].chunk(w.groups), strict=True)
            mean = torch.cat([(weight * taps).flatten(1).sum(1) for weight, taps in groups]) / known["windows"]
            assert known["taps"].dtype is torch.float64 and known["taps"].shape[1:] == w.shape[2:]
            assert int(known["windows"]) == int(out["count"])
            rest.append(out["sum"] / out["count"] - mean)
        rest += [view.read(p).double() for p in view.points() if p.role is Role.bias and p.layer == w.layer]
        for each in rest[1:]:
            torch.testing.assert_close(each, rest[0], rtol=1e-4, atol=1e-5)
    assert len({len(w.shape) for w in weights(view)}) > 1, "a layer with a kernel and one without"


def test_a_layer_is_shifted(example, view):
    if "shift" not in view.can:
        return
    before, was = answers(example, view), told(example, view, outputs(view), "sum", "count")
    for w in weights(view):
        twin, amount = view.copy(), torch.linspace(-1, 1, w.shape[0])
        twin.shift(w.layer, amount)
        now = told(example, twin, [p for p in outputs(twin) if p.layer == w.layer], "sum", "count")[w.layer]
        for old, new in zip(was[w.layer], now, strict=True):
            torch.testing.assert_close((new["sum"] - old["sum"]) / new["count"], amount.double(), atol=1e-5, rtol=1e-5)
        twin.shift(w.layer, -amount)
        for expected, found in zip(before, answers(example, twin)):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert all(map(torch.equal, before, answers(example, view))), "a copy is apart"
    for wrong in (torch.zeros(w.shape[0] + 1), torch.full(w.shape[:1], torch.nan)):
        with pytest.raises(UsageError):
            view.shift(w.layer, wrong)
    with pytest.raises(UsageError, match=r"no (layer|node) 'nobody'"):
        view.shift("nobody", torch.zeros(1))


def test_a_layer_with_codes_is_shifted(example, view):
    if "shift" not in view.can:
        return
    last = weights(view)[-1]
    view.quantize(last, codes(view.read(last)))
    rounded_answers = answers(example, view)
    view.shift(last.layer, torch.full(last.shape[:1], 0.5))
    for expected, found in zip(rounded_answers, answers(example, view)):
        torch.testing.assert_close(found, expected + 0.5, atol=1e-5, rtol=1e-5)


def test_what_is_written_is_read_and_a_copy_is_apart(example, view):
    before, twin = answers(example, view), view.copy()
    for p in weights(twin):
        twin.write(p, torch.full(p.shape, 0.25))
        assert torch.equal(twin.read(p), torch.full(p.shape, 0.25))
    assert all(map(torch.equal, before, answers(example, view)))
    assert not all(map(torch.equal, before, answers(example, twin)))
    with pytest.raises(UsageError, match="shape"):
        view.write(weights(view)[0], torch.zeros(1))


def test_a_weight_becomes_codes_and_the_points_stay(example, view):
    before, points, size, twin = answers(example, view), view.points(), view.size(), view.copy()
    for p in weights(twin):
        floats = twin.read(p).clone()
        twin.quantize(p, codes(floats, p.stack))
        torch.testing.assert_close(twin.read(p), rounded(floats))
    assert twin.points() == points and twin.size() < size
    assert twin.quantized() == list(dict.fromkeys(p.layer for p in weights(twin))) and view.quantized() == []
    assert twin.layers() == view.layers()
    assert all(map(torch.equal, before, answers(example, view)))
    for expected, found in zip(before, answers(example, twin)):
        assert 0 < (expected - found).norm() / expected.norm() < 0.1


def test_an_activation_goes_on_a_grid(example, view):
    before = answers(example, view)
    for p in view.points(lambda p: p.role is Role.input):
        view.quantize(p, Grid(Dtype.int8))
    assert 0 < (before[0] - answers(example, view)[0]).norm() / before[0].norm() < 0.1
    with pytest.raises(UsageError):
        view.quantize(view.points(lambda p: p.role is Role.input)[0], codes(torch.zeros(2, 2)))


def test_a_link_can_be_scaled_and_the_answers_stay(example, view):
    if {"structure", "rescale"} <= view.can:
        before = answers(example, view)
        found = view.structure(example[1].items[0])
        assert found.links and set(found.order) <= set(view.layers())
        for link in found.links:
            factors = torch.ones(max(link.channels) + 1)
            factors[[channel for channel in link.channels if channel >= 0]] = 2.0
            view.rescale(link.producer, link.consumers, link.channels, factors)
        for expected, now in zip(before, answers(example, view)):
            torch.testing.assert_close(now, expected)
