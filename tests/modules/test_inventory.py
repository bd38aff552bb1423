# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fewbit.errors import UsageError
from fewbit.modules.inventory import take
from fewbit.modules.quantized import set_weight
from quantized_models import INT4, encode, mlp, quantize_linears


class Odd(nn.Module):
    """Tensors in every place a module can have them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 16)
        self.head = nn.Linear(16, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("nothing", None)
        self.plain = torch.ones(3)
        self.shared = self.again = nn.LayerNorm(16)


def test_every_tensor_is_found_once():
    inventory = take(Odd())
    assert inventory.kinds == {
        "plain": "attribute",
        "table": "buffer",
        "embed.weight": "parameter",
        "shared.weight": "parameter",
        "shared.bias": "parameter",
    }
    assert inventory.aliases == {
        "head.weight": "embed.weight",
        "again.weight": "shared.weight",
        "again.bias": "shared.bias",
    }
    assert list(inventory.entries) == list(inventory.kinds)


def test_codes_take_the_place_of_the_weight():
    inventory = take(quantize_linears(mlp()))
    codes = {"0.weight_packed", "0.weight_scale", "2.weight_packed", "2.weight_scale"}
    assert {name for name, kind in inventory.kinds.items() if kind == "code"} == codes
    assert set(inventory.entries) == codes | {"0.bias", "2.bias"}


def test_codes_that_two_layers_share_are_one():
    model = Odd()
    codes = encode(model.embed.weight, INT4)
    set_weight(model.embed, "weight", codes)
    set_weight(model.head, "weight", codes)
    aliases = take(model).aliases
    assert aliases["head.weight_packed"] == "embed.weight_packed"
    assert aliases["head.weight_scale"] == "embed.weight_scale"


class Restoring(nn.Module):
    """A kernel that keeps the codes in a layout of its own: here, backwards."""

    def __init__(self, layer):
        super().__init__()
        self.qtensor = layer.codes_of("weight")
        self.register_buffer("moved", layer.weight_packed.flip(0))
        self.asked = 0
        layer.weight_packed = None

    def restore(self, layer):
        from dataclasses import replace

        self.asked += 1
        return replace(self.qtensor, packed=self.moved.flip(0))


def test_frozen_codes_are_asked_back_from_the_kernel_and_not_kept():
    model = quantize_linears(mlp())
    before = {name: entry.read().clone() for name, entry in take(model).entries.items()}
    model[0].kernel = Restoring(model[0])
    inventory = take(model)
    assert set(inventory.entries) == set(before) and not any("kernel" in name for name in inventory.entries)
    assert model[0].kernel.asked == 1
    assert all(torch.equal(entry.read(), before[name]) for name, entry in inventory.entries.items())
    assert model[0].kernel.asked == 2


def test_frozen_layers_with_equal_codes_are_two():
    model = nn.Sequential(nn.Linear(16, 4), nn.Linear(16, 4))
    model[1].load_state_dict(model[0].state_dict())
    for layer in model:
        set_weight(layer, "weight", encode(layer.weight, INT4))
        layer.kernel = Restoring(layer)
    inventory = take(model)
    assert torch.equal(inventory.entries["0.weight_packed"].read(), inventory.entries["1.weight_packed"].read())
    assert not inventory.aliases


def test_a_frozen_layer_under_two_names_is_one():
    layer = nn.Linear(16, 16)
    set_weight(layer, "weight", encode(layer.weight, INT4))
    layer.kernel = Restoring(layer)
    assert take(nn.Sequential(layer, layer)).aliases["1.weight_packed"] == "0.weight_packed"


def test_views_of_one_memory_that_differ_are_two():
    model = nn.Module()
    whole = torch.arange(4.0)
    model.register_buffer("first", whole[:2])
    model.register_buffer("last", whole[2:])
    model.register_buffer("matrix", whole.reshape(2, 2))
    model.register_buffer("turned", whole.reshape(2, 2).t())
    model.register_buffer("bits", whole.view(torch.int32))
    model.register_buffer("again", whole[2:])
    inventory = take(model)
    assert list(inventory.entries) == ["first", "last", "matrix", "turned", "bits"]
    assert inventory.aliases == {"again": "last"}


class Extra(nn.Module):
    def get_extra_state(self):
        return {"secret": 1}


@pytest.mark.parametrize(
    ("model", "what", "where"),
    [
        (nn.Linear(2, 2, device="meta"), "no values", "weight"),
        (nn.Sequential(Extra()), "not a tensor", "0"),
    ],
)
def test_what_a_file_cannot_keep_is_refused(model, what, where):
    with pytest.raises(UsageError, match=what) as error:
        take(model)
    assert error.value.where == where


def test_tensors_that_are_more_than_numbers_are_refused():
    model = nn.Module()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(UsageError, match="sparse"):
        take(model)

    class Marked(torch.Tensor):
        pass

    model.register_buffer("sparse", torch.eye(3).as_subclass(Marked))
    with pytest.raises(UsageError, match="Marked"):
        take(model)
