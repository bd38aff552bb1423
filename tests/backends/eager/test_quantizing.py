# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewbit.backends.eager.view import EagerView
from fewbit.errors import UsageError
from fewbit.model.points import Role
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from tiny_models import Encoder, codes, rounded, shaken


def point(view, name):
    return next(p for p in view.points() if p.name == name)


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), 0),
    "conv": (lambda: nn.Conv2d(6, 4, 3, groups=2), 0),
    "transposed": (lambda: nn.ConvTranspose1d(6, 4, 3), 1),
    "embedding": (lambda: nn.Embedding(6, 4), 0),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_weight_becomes_codes_in_its_own_layout(kind):
    torch.manual_seed(0)
    make, out = LAYERS[kind]
    module = make()
    view = EagerView(nn.Sequential(module)).copy()
    weight = point(view, "0.weight")
    before = view.read(weight).clone()
    view.quantize(weight, codes(before))
    made = view.native()[0]
    torch.testing.assert_close(made.weight, rounded(module.weight, out=out))
    torch.testing.assert_close(view.read(weight), rounded(before))


def test_groups_of_a_transposed_convolution():
    torch.manual_seed(0)
    module = nn.ConvTranspose2d(6, 4, 3, groups=2)
    view = EagerView(nn.Sequential(module)).copy()
    view.quantize(point(view, "0.weight"), codes(view.read(point(view, "0.weight"))))
    own = module.weight.detach()  # [6, 2, 3, 3]: outputs 0 and 1 of inputs 0 to 2, then of 3 to 5
    expected = torch.cat([rounded(own[:3], out=1), rounded(own[3:], out=1)])
    torch.testing.assert_close(view.native()[0].weight, expected)


def test_reading_and_writing_in_fewbits_layout():
    for make, _ in LAYERS.values():
        view = EagerView(nn.Sequential(make()))
        weight = point(view, "0.weight")
        new = torch.randn(weight.shape)
        view.write(weight, new)
        assert torch.equal(view.read(weight), new) and isinstance(view.native()[0].weight, nn.Parameter)
    with pytest.raises(UsageError, match=r"shape \(3,\)"):
        view.write(weight, torch.zeros(3))


def test_a_recurrent_layer_runs_with_what_was_written():
    view = EagerView(nn.Sequential(nn.GRU(3, 4)))
    weight = point(view, "0.weight_ih_l0")
    view.write(weight, torch.zeros(weight.shape))
    out = view.native()[0](torch.randn(2, 1, 3))[0]
    assert torch.equal(out, view.native()[0](torch.randn(2, 1, 3))[0]), "the input is multiplied by zero"


def test_fixed_and_dynamic_activations():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4))
    view = EagerView(model)
    x, weight, bias = torch.randn(3, 6), model[0].weight.detach(), model[0].bias.detach()
    grid = Grid(Dtype.int8)
    view.quantize(point(view, "0:input"), QParams(grid, (1,), torch.tensor([0.05])))
    fixed = (x / 0.05).round().clamp(-128, 127) * 0.05
    torch.testing.assert_close(model(x), F.linear(fixed, weight, bias))
    view.quantize(point(view, "0:input"), Grid(Dtype.int8, QSchemeType.per_token))
    scale = x.abs().amax(1, keepdim=True) / 127.5
    dynamic = (x / scale).round().clamp(-128, 127) * scale
    torch.testing.assert_close(model(x), F.linear(dynamic, weight, bias))
    assert isinstance(model[0].weight, nn.Parameter), "only the activation is quantized"


def test_channels_of_a_convolution_with_and_without_a_batch_axis():
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    view = EagerView(model)
    x = torch.randn(2, 3, 5, 5)
    view.quantize(point(view, "0:input"), Grid(Dtype.int4, QSchemeType.per_channel))
    scale = x.abs().amax((0, 2, 3), keepdim=True) / 7.5
    own = (x / scale).round().clamp(-8, 7) * scale
    expected = F.conv2d(own, model[0].weight, model[0].bias)
    torch.testing.assert_close(model(x), expected)
    assert model(x[0]).shape == (4, 5, 5)


def test_an_output_is_quantized_after_the_layer():
    model = nn.Sequential(nn.Embedding(5, 4))
    view = EagerView(model)
    view.quantize(point(view, "0:output"), Grid(Dtype.int4))
    table, ids = model[0].weight.detach(), torch.arange(5)
    scale = table.abs().max() / 7.5
    torch.testing.assert_close(model(ids), (table / scale).round().clamp(-8, 7) * scale)


def test_torchs_fast_path_is_closed():
    model = shaken(Encoder(norm_first=False))
    view = EagerView(model)
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        before = model(x)
        for p in view.points(lambda p: p.role is Role.input and p.layer.endswith("linear2")):
            view.quantize(p, Grid(Dtype.int2))
        assert (model(x) - before).abs().max() > 0.05


def test_codes_close_the_short_cuts_around_every_user_and_no_others():
    models = [Encoder(norm_first=False) for _ in range(3)]
    first, second, third = (model.encoder.layers for model in models)
    first[0].linear1.weight = third[1].linear1.weight
    view = EagerView(nn.ModuleList(models))
    weight = point(view, "0.encoder.layers.0.linear1.weight")
    view.quantize(weight, codes(view.read(weight)))
    view.quantize(weight, codes(view.read(weight)))
    hooks = [len(layer._forward_pre_hooks) for layer in (*first, *second, *third)]
    assert hooks == [1, 0, 0, 0, 0, 1]
    assert [model.encoder.use_nested_tensor for model in models] == [False, True, False]


def test_what_does_not_fit_is_refused():
    view = EagerView(nn.Sequential(nn.Linear(6, 4), nn.MultiheadAttention(4, 2)))
    weight = point(view, "0.weight")
    with pytest.raises(UsageError, match=r"0\.weight"):
        view.quantize(weight, codes(torch.zeros(6, 4)))
    with pytest.raises(UsageError, match="Grid"):
        view.quantize(weight, Grid(Dtype.int8))
    with pytest.raises(UsageError, match="QTensor"):
        view.quantize(point(view, "0:input"), codes(torch.zeros(4, 6)))
    from dataclasses import replace

    with pytest.raises(UsageError, match="nothing calls"):
        view.quantize(replace(point(view, "0:input"), layer="1.out_proj"), Grid(Dtype.int8))
    with pytest.raises(UsageError, match="no layer 'nope'"):
        view.read(replace(weight, layer="nope"))


def test_a_device_that_is_not_the_cpu_keeps_quantizers_with_their_layer():
    model = nn.Sequential(nn.Linear(6, 4)).to("meta")
    view = EagerView(model)
    view.quantize(point(view, "0:input"), QParams(Grid(Dtype.int8), (1,), torch.tensor([0.05])))
    assert model[0].input_quantizer.scale.is_meta
