# SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from fewbit.modules.fast_paths import close_fast_path, close_fast_paths, fast_paths_around
from fewbit.modules.quantized import make_quantized
from tiny_models import Encoder


def test_what_lies_on_which_short_cut():
    model = nn.ModuleDict({"plain": nn.Linear(2, 2), "encoder": Encoder(norm_first=False)})
    encoder = model["encoder"].encoder
    around = fast_paths_around(model)
    assert around[id(encoder.layers[1].linear1)] == [encoder, encoder.layers[1]]
    assert around[id(encoder.layers[0])] == [encoder, encoder.layers[0]]
    assert id(model["plain"]) not in around and id(model["encoder"]) not in around


def test_a_layer_shared_by_two_encoders_is_on_both_short_cuts():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoders = [nn.TransformerEncoder(layer, 1) for _ in range(2)]
    encoders[1].layers[0] = encoders[0].layers[0]
    around = fast_paths_around(nn.ModuleList(encoders))
    assert [m for m in around[id(encoders[0].layers[0].linear1)] if m in encoders] == encoders


def test_closing_one_short_cut_twice_leaves_one_hook_and_the_others_open():
    model = Encoder(norm_first=False).eval()
    first, second = model.encoder.layers
    for _ in range(2):
        close_fast_path(first)
        close_fast_path(model.encoder)
    assert len(first._forward_pre_hooks) == 1 and not second._forward_pre_hooks
    assert not model.encoder.use_nested_tensor


def test_closing_around_one_module_is_what_closing_all_does():
    one, other = Encoder(norm_first=False), Encoder(norm_first=False)
    for model in (one, other):
        make_quantized(model.encoder.layers[1].linear2)
    close_fast_paths(one)
    for outer in fast_paths_around(other)[id(other.encoder.layers[1].linear2)]:
        close_fast_path(outer)
    for a, b in zip(one.modules(), other.modules()):
        assert len(a._forward_pre_hooks) == len(b._forward_pre_hooks)
        assert getattr(a, "use_nested_tensor", None) == getattr(b, "use_nested_tensor", None)
    assert torch.is_tensor(one.eval()(torch.zeros(1, 2, 16)))
