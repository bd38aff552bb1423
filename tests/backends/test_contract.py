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
from fewbit.model.points import Role
from fewbit.model.view import ModelView
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import codes, rounded

BACKENDS = registry.names("backends")


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
        if not name.startswith("_"):
            ours = inspect.signature(getattr(type(view), name)).parameters
            assert list(ours) == list(inspect.signature(verb).parameters), name
    assert view.can <= {"structure", "rescale", "prune"}
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
    with pytest.raises(UsageError, match="no layer 'nobody'"):
        view.types("nobody")


def test_a_run_shows_positions_by_features_and_changes_nothing(example, view):
    before, seen = answers(example, view), []
    first = view.points(lambda p: p.role is Role.input)[0]
    assert view.run(example[1].items, {first: lambda x, i: seen.append((tuple(x.shape), i))}) == len(example[1].items)
    inner = next(w.shape[w.stack + 1] for w in weights(view) if w.layer == first.layer)
    assert [i for _, i in seen] == list(range(len(example[1].items)))
    assert {shape[1:] for shape, _ in seen} == {(inner,)}
    assert all(map(torch.equal, before, answers(example, view)))
    view.run([], {})
    assert all(isinstance(where, str) and isinstance(what, str) for where, what in view.notes)


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


def test_pruning_keeps_what_the_mask_keeps(view):
    if "prune" in view.can:
        p = weights(view)[0]
        before = view.read(p).clone()
        mask = before > 0
        view.prune(p, mask)
        assert torch.equal(view.read(p), before * mask)


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
