# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import codes, transformer


def test_containers_norms_and_activations_can_be_named():
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "norm": nn.LayerNorm(4)})
    view = EagerView(model)
    assert view.layers() == {
        "body": ("Sequential", "Module"),
        "body.0": ("Linear", "Module"),
        "body.1": ("ReLU", "Module"),
        "norm": ("LayerNorm", "Module"),
    }
    assert view.types("norm") == ("LayerNorm", "Module")


def test_the_model_itself_is_named_only_where_it_is_a_layer():
    assert list(EagerView(nn.Linear(4, 4)).layers()) == [""]
    bare = EagerView(nn.Sequential(nn.ReLU()))
    assert list(bare.layers()) == ["0"]
    with pytest.raises(UsageError, match="no layer ''"):
        bare.types("")


def test_a_shared_module_is_there_under_each_of_its_names():
    inner = nn.Sequential(nn.Linear(4, 4))
    view = EagerView(nn.ModuleDict({"a": inner, "b": inner}))
    assert list(view.layers()) == ["a", "a.0", "b", "b.0"]
    assert view.types("b.0") == ("Linear", "Module")


def test_routers_and_norms_of_a_transformer():
    view = EagerView(transformer("mixtral"))
    layers = view.layers()
    (router,) = [layer for layer, _ in view.skipped() if layer.endswith(".gate")]
    assert layers[router][-1] == "Module" and layers["model.layers.0.input_layernorm"][0] == "MixtralRMSNorm"
    assert {p.layer for p in view.points()} <= set(layers), "attention, which owns the cache, included"


def test_quantizing_adds_no_names_and_changes_no_types():
    view = EagerView(transformer("llama"))
    before = view.layers()
    for point in view.points():
        if point.role in (Role.weight, Role.bias):
            view.quantize(point, codes(view.read(point), point.stack))
        elif point.role in (Role.key, Role.value):
            view.quantize(point, Grid(Dtype.int8, QSchemeType.per_token))
        elif point.role is Role.input:
            view.quantize(point, Grid(Dtype.int8))
    assert view.layers() == before == EagerView(view.native()).layers()


def test_a_part_of_the_models_own_called_as_ours_is_kept():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].input_quantizer = nn.Identity()
    assert "0.input_quantizer" in EagerView(model).layers()
    assert torch.is_tensor(model(torch.zeros(1, 2)))
