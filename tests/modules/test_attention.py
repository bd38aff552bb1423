# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from torch import nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.fast_paths import close_fast_paths
from fewbit.modules.quantized import make_quantized, set_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import Encoder, codes, rounded, shaken


def int4(t):
    scale = t.abs().max() / 7.5
    return (t / scale).round().clamp(-8, 7) * scale


@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 10}])
def test_projections_as_codes(sizes):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True, **sizes).eval()
    twin = copy.deepcopy(module)
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.ndim == 2:
            twin.get_parameter(name).data = rounded(parameter)
            set_weight(module, name, codes(parameter))
    twin.out_proj.weight.data = rounded(twin.out_proj.weight)
    set_weight(module.out_proj, "weight", codes(module.out_proj.weight))
    q = torch.randn(2, 3, 8)
    k, v = (torch.randn(2, 4, sizes[name]) for name in sizes) if sizes else (q, q)
    for grad in (True, False):  # the fast path is open without gradients only
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(module(q, k, v)[0], twin(q, k, v)[0])


def test_query_key_and_value_are_all_quantized():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    twin = copy.deepcopy(module)
    make_quantized(module).input_quantizer = ActivationQuantizer(Grid(Dtype.int4))
    q, k, v = torch.randn(3, 2, 3, 8)
    torch.testing.assert_close(module(q, k, value=v)[0], twin(int4(q), int4(k), int4(v))[0])
    torch.testing.assert_close(module(q, q, q)[0], twin(*[int4(q)] * 3)[0])


def test_export_of_attention():
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    set_weight(module, "in_proj_weight", codes(module.in_proj_weight))
    x = torch.randn(1, 3, 8)
    torch.testing.assert_close(torch.export.export(module, (x, x, x)).module()(x, x, x)[0], module(x, x, x)[0])


def test_torchs_fast_path_does_not_pass_by_a_quantizer():
    model = shaken(Encoder(norm_first=False))
    x, padded = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    called = []

    class Spy(ActivationQuantizer):
        def forward(self, x):
            called.append(tuple(x.shape))
            return super().forward(x)

    make_quantized(model.encoder.layers[0].linear1).input_quantizer = Spy(Grid(Dtype.int8))
    close_fast_paths(model)
    close_fast_paths(model)
    with torch.no_grad():
        model(x)
        model(x, src_key_padding_mask=padded)
    assert called == [(2, 5, 16), (2, 5, 16)]
    assert len(model.encoder.layers[0]._forward_pre_hooks) == 1
    assert not model.encoder.layers[1]._forward_pre_hooks, "layers without a quantized module stay as they are"
    assert len(copy.deepcopy(model).encoder.layers[0]._forward_pre_hooks) == 1
