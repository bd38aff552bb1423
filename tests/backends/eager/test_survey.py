# SPDX-License-Identifier: Apache-2.0
"""What a view knows of its model is looked up once and stays right while the view's own verbs change the model."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fewbit.backends.eager import catalogue, ties
from fewbit.backends.eager import view as view_module
from fewbit.backends.eager.tracing import steps
from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.modules.freezing import unfreeze
from fewbit.modules.quantized import get_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import codes, shaken


def weights(view):
    return view.points(lambda p: p.role is Role.weight)


class Work:
    """Counts modules walked over and modules whose parameters are looked at."""

    def __init__(self, monkeypatch):
        self.count = 0
        walk, held = nn.Module.named_modules, ties.held

        def counted_walk(module, *args, **kwargs):
            self.count += 1  # it calls itself for every module below
            return walk(module, *args, **kwargs)

        def counted_held(module):
            self.count += 1
            return held(module)

        monkeypatch.setattr(nn.Module, "named_modules", counted_walk)
        for place in (ties, catalogue, view_module):
            monkeypatch.setattr(place, "held", counted_held)

    def of(self, action):
        before = self.count
        action()
        return self.count - before


def deep(layers):
    """Linear layers in lists, in an encoder layer's way too: short cuts have to be looked for."""
    lists = [nn.ModuleList(nn.Linear(2, 2) for _ in range(5)) for _ in range(layers // 5)]
    return nn.ModuleList([*lists, nn.TransformerEncoderLayer(2, 1, 2)])


def everything(layers):
    view = EagerView(deep(layers))
    for point in view.points():
        if point.role in (Role.weight, Role.bias):
            tensor = view.read(point)
            view.write(point, tensor)
            view.quantize(point, codes(tensor))
        elif point.role is Role.input:
            view.quantize(point, Grid(Dtype.int8))
    for layer in view.layers():
        view.types(layer)
    view.points()
    view.skipped()


def test_work_grows_with_the_number_of_layers_and_not_with_its_square(monkeypatch):
    work = Work(monkeypatch)
    few, many = work.of(lambda: everything(20)), work.of(lambda: everything(80))
    assert few > 20 and many < 4.5 * few


def test_asking_again_costs_nothing(monkeypatch):
    view, work = EagerView(deep(20)), Work(monkeypatch)
    assert work.of(view.points) > 0
    assert work.of(view.points) == 0


def test_steps_are_found_without_comparing_every_two_layers():
    class Name(str):
        compared = 0

        def startswith(self, *args):
            Name.compared += 1
            return super().startswith(*args)

    found = catalogue.catalogue(deep(40), {})
    found.layers = {Name(name): layer for name, layer in found.layers.items()}
    assert len(steps(found)) >= 40 and Name.compared <= len(found.layers)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.same, self.other = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.up.weight = nn.Parameter(self.down.weight.detach().T)
        self.same.weight = self.down.weight


def test_users_stay_right_through_writing_coding_and_back():
    torch.manual_seed(0)
    model = shaken(Tied())
    model.up.weight = nn.Parameter(model.down.weight.detach().T)
    view = EagerView(model)
    down, up, _, other = weights(view)
    alone = model.other.weight.detach().clone()
    for change in range(4):
        target, value = (down, up)[change % 2], torch.randn(4, 4)
        view.write(target, value)
        if change > 1:
            view.quantize(target, codes(value))
        seen = view.read(target)
        for point in weights(view)[:3]:
            turned = seen if (point.layer == "up") == (target.layer == "up") else seen.T
            assert torch.equal(view.read(point), turned), (change, point.name)
        assert torch.equal(model.other.weight, alone)
        assert [p.users for p in weights(view)] == [p.users for p in weights(EagerView(model))]
    assert other.users == ("other.weight",)


def test_two_layers_given_the_same_tensor_stay_two():
    model = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
    view = EagerView(model)
    first, second = weights(view)
    both = codes(torch.randn(4, 4))
    view.quantize(first, both)
    view.quantize(second, both)
    view.write(first, torch.ones(4, 4))
    assert torch.equal(view.read(second), both.dequantize())


def test_a_cast_parts_what_only_shared_memory():
    model = Tied()
    view = EagerView(model)
    down, up = weights(view)[:2]
    model.half()
    before = view.read(up).clone()
    view.write(down, torch.ones(4, 4))
    assert torch.equal(model.same.weight, torch.ones(4, 4).half()) and torch.equal(view.read(up), before)


def frozen(layer):
    """A layer whose codes a kernel holds, as `freeze` leaves one behind; real kernels depend on the machine."""
    kept = get_weight(layer, "weight")
    layer.kernel = SimpleNamespace(takes=("packed",), stand_in=None, restore=lambda layer: kept)
    layer._buffers["weight_packed"] = None


def test_frozen_weights_are_refused_and_thawed_ones_taken():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    early = EagerView(model)
    for point in weights(early):
        early.quantize(point, codes(early.read(point)))
    frozen(model[0])
    late = EagerView(model)
    for view in (early, late):
        first, second = weights(view)
        assert first.users == ("0.weight",) and first.shape == (4, 4)
        with pytest.raises(UsageError, match="frozen: a kernel holds its weight"):
            view.write(first, torch.zeros(4, 4))
        view.write(second, torch.zeros(4, 4))
    unfreeze(model)
    for view in (early, late):
        view.write(first, torch.full((4, 4), 0.5))
        assert torch.equal(view.read(first), torch.full((4, 4), 0.5))
        view.quantize(first, codes(torch.ones(4, 4)))


def test_a_run_gives_lazy_layers_weights_and_the_view_sees_them():
    view = EagerView(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)))
    assert [p.layer for p in weights(view)] == ["1"] and [layer for layer, _ in view.skipped()] == ["0"]
    view.run([((torch.zeros(1, 5),), {})], {})
    assert [p.shape for p in weights(view)] == [(3, 5), (2, 3)] and view.skipped() == []
    assert view.types("0") == ("Linear", "Module")
