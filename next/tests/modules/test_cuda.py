# SPDX-License-Identifier: Apache-2.0
"""Frozen layers on a GPU compute what they compute on a CPU, and move between both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fewbit.backends.torch.kernels import freeze
from fewbit.backends.torch.layers import ActivationQuantizer
from modules.conftest import TOKEN, WEIGHT_GRIDS, quantized

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grid", WEIGHT_GRIDS.values(), ids=WEIGHT_GRIDS)
def test_a_frozen_layer_moves_to_the_gpu_and_back(grid, dynamic):
    layer, x = quantized(nn.Linear(128, 64), grid, ActivationQuantizer(TOKEN) if dynamic else None), torch.randn(5, 128)
    with torch.no_grad():
        expected, state = layer(x), {name: value.clone() for name, value in layer.state_dict().items()}
        freeze(layer)
        layer.cuda()
        assert torch.allclose(layer(x.cuda()).cpu(), expected, atol=1e-3)
        layer.cpu()
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
