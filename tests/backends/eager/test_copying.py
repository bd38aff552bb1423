# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
import torch
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import Encoder, Tagger, codes, shaken, tokens, transformer


def snapshot(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kinds = {name: (type(m), m.training, len(m._forward_pre_hooks)) for name, m in model.named_modules()}
    return state, kinds


def same(before, after):
    return before[1] == after[1] and all(torch.equal(before[0][name], after[0][name]) for name in before[0])


def test_matrices_share_their_memory_and_nothing_else_is_shared():
    model = transformer("llama")
    twin = EagerView(model).copy().native()
    for (name, one), other in zip(model.named_parameters(), twin.parameters()):
        assert one is not other and torch.equal(one, other)
        assert (one.data_ptr() == other.data_ptr()) == (one.ndim > 1), name
    assert twin.config is not model.config and twin.generation_config is not model.generation_config
    assert not {id(m) for m in model.modules()} & {id(m) for m in twin.modules()}


@pytest.mark.parametrize("make", [lambda: transformer("opt"), lambda: shaken(Tagger()), lambda: shaken(Encoder())])
def test_nothing_done_to_a_copy_reaches_the_original(make):
    model = make()
    item = ((torch.randn(1, 4, 16),) if isinstance(model, Encoder) else (tokens(),), {})
    before = snapshot(model)
    view = EagerView(model).copy()
    links = view.structure(item).links
    for link in links:
        view.rescale(link.producer, link.consumers, link.channels, torch.full((max(link.channels) + 1,), 2.0))
    for point in view.points():
        if point.role in (Role.weight, Role.bias):
            view.quantize(point, codes(view.read(point), point.stack))
        elif point.role is Role.input:
            view.quantize(point, Grid(Dtype.int8))
    view.native().half().train()
    if hasattr(model, "config"):
        view.native().config.use_cache = False
        view.native().generation_config.max_length = 77
        assert model.config.use_cache is not False and model.generation_config.max_length != 77
    assert links and same(before, snapshot(model))
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_training_a_copy_leaves_norms_biases_and_statistics_of_the_original():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    before = snapshot(model)
    twin = EagerView(model).copy().native()
    twin(torch.randn(2, 3, 5, 5))
    with torch.no_grad():
        twin[0].bias.add_(1)
        twin[1].weight.add_(1)
    assert same(before, snapshot(model))


class Remembers(nn.Module):
    """Writes in its forward what no parameter holds: a cache, a queue through a view of it, a codebook."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(1, 2, 3, 4))
        self.register_buffer("newest", self.cache[:, :, -1])
        self.codebook = torch.zeros(4, 4)
        self.made = self.linear.weight * 2  # the result of a computation
        self.kept = [torch.zeros(2, 2)]

    def forward(self, x):
        self.newest += 1
        self.codebook += 1
        with torch.no_grad():
            self.made += 1
        self.kept[0] += 1
        return self.linear(x)


def test_what_a_copys_forward_writes_does_not_reach_the_original():
    model = Remembers()
    before = [t.detach().clone() for t in (model.cache, model.newest, model.codebook, model.made, model.kept[0])]
    twin = EagerView(model).copy().native()
    assert twin.linear.weight.data_ptr() == model.linear.weight.data_ptr()
    twin(torch.zeros(1, 4))
    assert twin.cache[:, :, -1].eq(1).all() and twin.codebook.eq(1).all(), "views of one memory stay views of one"
    after = (model.cache, model.newest, model.codebook, model.made, model.kept[0])
    assert all(map(torch.equal, before, after))


def test_a_copy_that_runs_gives_the_originals_lazy_layers_no_weights():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    twin = EagerView(model).copy().native()
    twin(torch.randn(2, 4))
    assert twin[0].weight.shape == (3, 4)
    assert nn.parameter.is_lazy(model[0].weight) and nn.parameter.is_lazy(model[1].running_mean)


def test_a_buffer_of_a_special_class_is_copied_too():
    class Special(torch.Tensor):
        pass

    model = nn.Linear(4, 4)
    model.register_buffer("table", torch.zeros(4, 4).as_subclass(Special))
    twin = EagerView(model).copy().native()
    twin.table += 1
    assert type(twin.table) is Special and model.table.eq(0).all()


def test_ties_shared_modules_gradients_and_hooks():
    inner = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": inner, "b": inner, "c": nn.Linear(4, 4, bias=False)})
    model["c"].weight = inner.weight
    inner.weight.grad = torch.ones(4, 4)
    inner.bias.requires_grad_(False)
    seen = []
    inner.register_forward_hook(lambda *_: seen.append(1))
    twin = EagerView(model).copy().native()
    assert twin["a"] is twin["b"] and twin["c"].weight is twin["a"].weight
    assert twin["a"].weight.grad is None and inner.weight.grad is not None
    assert not twin["a"].bias.requires_grad and twin["a"].weight.requires_grad
    twin["a"](torch.zeros(1, 4))
    assert seen == [1] and twin["a"]._forward_hooks is not inner._forward_hooks


def test_a_quantized_model_can_be_copied_again():
    view = EagerView(shaken(Tagger()))
    for point in view.points(lambda p: p.role is Role.weight):
        view.quantize(point, codes(view.read(point)))
    twin = view.copy()
    assert torch.equal(twin.native()(tokens()), view.native()(tokens()))
    twin.native().half()
    assert view.native().head.weight.dtype == torch.float32
    assert twin.native().head.weight_packed.data_ptr() == view.native().head.weight_packed.data_ptr()


def test_what_cannot_be_copied_is_an_error_with_a_way_out():
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be copied") as error:
        EagerView(model).copy()
    assert "inplace=True" in error.value.try_
