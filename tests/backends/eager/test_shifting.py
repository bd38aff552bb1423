# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.modules.freezing import freeze
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from tiny_models import codes, tokens, transformer

LAYERS = [
    (nn.Linear(4, 6), (3, 4)),
    (nn.Conv1d(4, 6, 3), (2, 4, 7)),
    (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 7, 7)),
    (nn.Conv3d(4, 6, 2), (2, 4, 3, 3, 3)),
    (nn.ConvTranspose1d(4, 6, 3), (2, 4, 7)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 7, 7)),
    (nn.ConvTranspose3d(4, 6, 2), (2, 4, 3, 3, 3)),
]


def without_bias(layer):
    layer.bias = None
    return layer


def channels(x, like):
    return x if like.ndim == 2 else x.reshape(-1, *(1,) * (like.ndim - 2))


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "codes"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "")
def test_every_output_channel_moves_by_its_amount(layer, shape, bias, quantized):
    model = EagerView(nn.Sequential(layer)).copy().native().double().eval()
    view = EagerView(model if bias else nn.Sequential(without_bias(model[0])))
    x, amount = torch.randn(shape, dtype=torch.float64), torch.randn(6)
    if quantized:
        (point,) = view.points(lambda p: p.role is Role.weight)
        view.quantize(point, codes(view.read(point)))
    before, twin = view.native()(x).detach(), view.copy()
    had = [p.name for p in view.points(lambda p: p.role is Role.bias)]
    twin.shift("0", amount)
    after = twin.native()(x).detach()
    torch.testing.assert_close(after, before + channels(amount.double(), before))
    assert torch.equal(view.native()(x).detach(), before), "the copy is apart"
    assert had == (["0.bias"] if bias else [])
    (point,) = twin.points(lambda p: p.role is Role.bias)
    assert point.shape == (6,) and point.dtype == "float64" and twin.native()[0].bias.dtype is torch.float64
    twin.shift("0", -amount)
    torch.testing.assert_close(twin.native()(x).detach(), before)


def test_a_bias_that_is_made_trains_if_the_weight_does_and_is_kept_in_the_state():
    for trains in (True, False):
        layer = nn.Linear(3, 2, bias=False).requires_grad_(trains).half()
        view, amount = EagerView(nn.Sequential(layer)), torch.tensor([1.0, 2.0])
        view.shift("0", amount)
        amount.zero_()
        made = view.native().state_dict()["0.bias"]
        assert made.dtype is torch.float16 and made.tolist() == [1, 2] and layer.bias.requires_grad is trains


def test_conv1d_of_gpt2_and_a_tied_head():
    model = transformer("gpt2")
    view, item = EagerView(model), {"input_ids": tokens()}
    before = model(**item).logits
    view.shift("lm_head", torch.arange(40.0))
    torch.testing.assert_close(model(**item).logits, before + torch.arange(40.0))
    assert model.lm_head.weight is model.transformer.wte.weight, "the embedding has no part in it"
    layer, x = model.transformer.h[0].attn.c_attn, torch.randn(2, 16)
    plain = layer(x)
    view.shift("transformer.h.0.attn.c_attn", torch.ones(48))
    torch.testing.assert_close(layer(x), plain + 1)


def test_a_bias_that_two_layers_share_moves_for_one_of_them():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.bias = one.bias
    view, x = EagerView(nn.Sequential(one, two)), torch.randn(3, 2)
    before = two(x)
    view.shift("0", torch.ones(2))
    assert torch.equal(two(x), before)
    assert [p.users for p in view.points(lambda p: p.role is Role.bias)] == [("0.bias",), ("1.bias",)]


def test_the_projection_inside_attention():
    attention = nn.MultiheadAttention(4, 2, bias=False, batch_first=True).eval()
    view, x = EagerView(nn.ModuleDict({"a": attention})), torch.randn(2, 3, 4)
    before = attention(x, x, x)[0]
    view.shift("a.out_proj", torch.ones(4))
    torch.testing.assert_close(attention(x, x, x)[0], before + 1)


class OwnForward(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight)


class Slotless(nn.Linear):
    def __init__(self):
        super().__init__(3, 2, bias=False)
        del self._parameters["bias"]
        self.bias = 0.0


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.LayerNorm(3), "no linear layer and no convolution"),
        (nn.LSTM(3, 2), "no linear layer and no convolution"),
        (nn.Embedding(3, 2), "no linear layer and no convolution"),
        (OwnForward(3, 2, bias=False), "forward of its own"),
        (Slotless(), "no place for a bias"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_where_there_is_no_place_for_it(layer, words):
    view = EagerView(nn.Sequential(layer))
    with pytest.raises(UsageError, match=words):
        view.shift("0", torch.ones(2))


def test_codes_in_the_bias_and_frozen_layers_are_refused():
    view = EagerView(nn.Sequential(nn.Linear(16, 16)))
    weight, bias = view.points(lambda p: p.role in (Role.weight, Role.bias))
    view.quantize(weight, codes(view.read(weight)))
    twin = view.copy()
    grid = Grid(Dtype.int8, QSchemeType.per_channel, axis=0)
    twin.quantize(bias, QTensor.encode(twin.read(bias), QParams(grid, (1,), torch.full((16,), 0.01))))
    with pytest.raises(UsageError, match="bias is codes"):
        twin.shift("0", torch.ones(16))
    freeze(view.native())
    with pytest.raises(UsageError, match="frozen"):
        view.shift("0", torch.ones(16))


@pytest.mark.parametrize("amount", [torch.ones(3), torch.ones(2, 1), torch.tensor([1.0, torch.nan])])
def test_amounts_that_do_not_fit(amount):
    view = EagerView(nn.Sequential(nn.Linear(3, 2)))
    before = view.native()[0].bias.clone()
    with pytest.raises(UsageError, match="2 output channels"):
        view.shift("0", amount)
    with pytest.raises(UsageError, match="no layer 'nobody'"):
        view.shift("nobody", amount)
    assert torch.equal(view.native()[0].bias, before)
