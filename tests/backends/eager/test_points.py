# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from fewbit.backends.eager.view import EagerView
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.model.points import Role
from tiny_models import codes, shaken, transformer


class Mine(nn.Linear):
    pass


def weights(view):
    return {p.name: p.shape for p in view.points(lambda p: p.role is Role.weight)}


def test_layers_and_their_layout():
    model = nn.ModuleDict(
        {
            "linear": Mine(6, 4),
            "conv1": nn.Conv1d(6, 4, 3, groups=2),
            "conv3": nn.Conv3d(2, 4, 2, bias=False),
            "up1": nn.ConvTranspose1d(6, 4, 3),
            "up2": nn.ConvTranspose2d(6, 4, 3, groups=2),
            "up3": nn.ConvTranspose3d(2, 3, 2),
            "table": nn.Embedding(9, 5),
            "bag": nn.EmbeddingBag(9, 5),
            "norm": nn.LayerNorm(6),
        }
    )
    view = EagerView(model)
    assert weights(view) == {
        "linear.weight": (4, 6),
        "conv1.weight": (4, 3, 3),
        "conv3.weight": (4, 2, 2, 2, 2),
        "up1.weight": (4, 6, 3),
        "up2.weight": (4, 3, 3, 3),
        "up3.weight": (3, 2, 2, 2, 2),
        "table.weight": (9, 5),
        "bag.weight": (9, 5),
    }
    by_name = {p.name: p for p in view.points()}
    assert by_name["conv1.weight"].groups == by_name["up2.weight"].groups == 2
    assert by_name["linear.bias"].shape == (4,) and "conv3.bias" not in by_name
    assert by_name["linear:input"].feeds == ("weight",) and by_name["linear:output"].op.name == "linear"
    assert "table:input" not in by_name, "indices are no numbers to quantize"
    assert view.skipped() == []
    assert view.types("linear") == ("Mine", "Linear", "Module")
    assert view.size() == sum(p.numel() * 4 for p in model.parameters())


def test_recurrent_layers():
    view = EagerView(nn.LSTM(5, 6, 2, bidirectional=True, proj_size=3))
    shapes = weights(view)
    assert len(shapes) == 12
    assert shapes["weight_ih_l1_reverse"] == (24, 6) and shapes["weight_hr_l0"] == (3, 6)
    by_name = {p.name: p for p in view.points()}
    assert by_name[":input"].feeds == ("weight_ih_l0", "weight_ih_l0_reverse")
    assert by_name["bias_hh_l1"].role is Role.bias
    assert set(weights(EagerView(nn.GRUCell(3, 4)))) == {"weight_ih", "weight_hh"}


def test_attention_with_one_projection_and_with_three():
    view = EagerView(nn.MultiheadAttention(8, 2))
    assert weights(view) == {"in_proj_weight": (24, 8), "out_proj.weight": (8, 8)}
    names = [p.name for p in view.points()]
    assert ":input" in names and "out_proj:input" not in names, "its forward is never called"
    apart = EagerView(nn.MultiheadAttention(8, 2, kdim=6, vdim=10))
    assert weights(apart) == {
        "q_proj_weight": (8, 8), "k_proj_weight": (8, 6), "v_proj_weight": (8, 10), "out_proj.weight": (8, 8)
    }  # fmt: skip
    assert ":input" not in [p.name for p in apart.points()], "three inputs of three widths have no common scale"


def test_the_huggingface_conv1d_is_a_linear_layer_the_other_way_round():
    view = EagerView(transformer("gpt2"))
    assert weights(view)["transformer.h.0.attn.c_attn.weight"] == (48, 16)
    point = next(p for p in view.points() if p.name == "transformer.h.0.mlp.c_fc.weight")
    module = view.native().transformer.h[0].mlp.c_fc
    assert torch.equal(view.read(point), module.weight.detach().T) and point.op.name == "linear"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "remove_parametrizations"),
        (lambda: parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), "computed from other tensors"),
        (lambda: spectral_norm(nn.Linear(4, 4)), "remove_spectral_norm"),
        (lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5), "prune.remove"),
        (lambda: nn.LazyLinear(4), "run the model once"),
        (lambda: nn.Linear(4, 4).to(torch.float8_e4m3fn), "float8_e4m3fn"),
        (lambda: nn.Linear(4, 4, dtype=torch.complex64), "complex64"),
        (lambda: nn.Bilinear(3, 4, 5), "only when the model runs"),
        (lambda: nn.ParameterList([torch.randn(3, 4)]), "class of its own"),
        (lambda: nn.ParameterList([torch.randn(3, 0)]), "0: has no elements"),
        (lambda: nn.Embedding(0, 4), "the weight of Embedding has no elements"),
    ],
)
def test_what_cannot_be_quantized_is_named_with_the_reason(make, words):
    model = nn.ModuleDict({"fine": nn.Linear(4, 4), "odd": make()})
    view = EagerView(model)
    assert weights(view) == {"fine.weight": (4, 4)}
    ((layer, reason),) = view.skipped()
    assert layer == "odd" and words in reason


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_elements_is_left_alone_and_the_rest_is_quantized():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.empty, self.full = nn.Linear(0, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.full(x) + self.empty(x[:, :0])

    view = EagerView(Empty())
    assert {p.layer for p in view.points()} == {"full"}
    assert view.skipped() == [("empty", "the weight of Linear has no elements")]
    data = [torch.randn(2, 4) for _ in range(5)]
    quantizer = ModelQuantizer("w8a8")
    assert quantizer.quantize_model(Empty().eval(), data)(data[0]).shape == (2, 4)
    assert [line["where"] for line in quantizer.record.lines if line["what"] == "float"] == ["empty"]


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
def test_the_old_weight_norm_is_named_too():
    ((layer, reason),) = EagerView(nn.Sequential(old_weight_norm(nn.Linear(4, 4)))).skipped()
    assert layer == "0" and "remove_weight_norm" in reason


def test_every_matrix_is_a_point_or_has_a_reason():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.position = nn.Parameter(torch.zeros(1, 7, 4))
            self.gain = nn.Parameter(torch.ones(4))
            self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)

        def forward(self, x):
            return self.inner(x + self.position) * self.gain

    for model in (Odd(), nn.Sequential(Odd(), Odd()), transformer("bert"), transformer("mixtral"), transformer("t5")):
        view = EagerView(model)
        named = {user for p in view.points() for user in p.users}
        skipped = [layer for layer, _ in view.skipped()]
        for name, parameter in model.named_parameters():
            layer = name.rpartition(".")[0]
            assert name in named or layer in skipped or parameter.ndim < 2 or "bias_" in name, name


def test_points_stay_the_same_when_weights_become_codes():
    model = shaken(nn.Sequential(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.Linear(4, 3), nn.LSTM(3, 5)))
    view = EagerView(model)
    before = view.points()
    for point in view.points(lambda p: p.role is Role.weight):
        view.quantize(point, codes(view.read(point)))
    assert view.points() == before
    assert EagerView(model).points() == before
    assert view.types("1") == ("Linear", "Module")
    assert view.size() < sum(4 * p.elements for p in before)


def test_a_module_under_two_names_is_one_layer():
    inner = nn.Linear(4, 4)
    view = EagerView(nn.ModuleDict({"a": inner, "b": inner}))
    points = view.points(lambda p: p.role is Role.weight)
    assert [p.layer for p in points] == ["a"] and points[0].users == ("a.weight", "b.weight")


def test_a_forward_put_on_an_instance_passes_by_quantizers_so_there_is_no_such_point():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].forward = lambda x: x
    assert [p.role for p in EagerView(model).points()] == [Role.weight, Role.bias]
