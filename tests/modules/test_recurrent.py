# SPDX-License-Identifier: Apache-2.0
import copy
import pickle

import pytest
import torch
from torch import nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.quantized import make_quantized, set_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from tiny_models import codes, rounded

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")

KINDS = {
    "lstm": lambda: nn.LSTM(5, 6, 2, bidirectional=True),
    "projected": lambda: nn.LSTM(5, 6, proj_size=3, bias=False),
    "gru": lambda: nn.GRU(5, 6, batch_first=True),
    "rnn": lambda: nn.RNN(5, 6, nonlinearity="relu"),
}


@pytest.fixture(params=KINDS)
def pair(request):
    """A quantized layer and the float layer it stands for."""
    torch.manual_seed(0)
    module = KINDS[request.param]().eval()
    twin = copy.deepcopy(module)
    for name, parameter in list(module.named_parameters()):
        if name.startswith("weight"):
            twin.get_parameter(name).data = rounded(parameter)
            set_weight(module, name, codes(parameter))
    return module, twin


def test_it_computes_with_rounded_weights(pair):
    module, twin = pair
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(module(x)[0], twin(x)[0])


def test_it_keeps_no_second_hold_on_float_weights(pair):
    module, _ = pair
    module(torch.randn(4, 3, 5))
    kept = [value for value in vars(module).values() if isinstance(value, list | torch.Tensor)]
    assert not any(isinstance(item, torch.Tensor) for value in kept for item in value)
    assert not any(name.startswith("weight") for name, _ in module.named_parameters())


def test_copies_pickles_and_casts(pair):
    module, twin = pair
    x = torch.randn(4, 3, 5)
    out = module(x)[0]
    assert torch.equal(copy.deepcopy(module)(x)[0], out)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x)[0], out)
    torch.testing.assert_close(module.double()(x.double())[0], twin.double()(x.double())[0], atol=1e-6, rtol=1e-5)


def test_packed_sequences_are_quantized_too():
    torch.manual_seed(0)
    module = nn.LSTM(5, 6).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 5), torch.randn(2, 5)])
    before = module(packed)[0].data
    layer = make_quantized(module)
    layer.input_quantizer = ActivationQuantizer(Grid(Dtype.int8))
    layer.output_quantizer = ActivationQuantizer(Grid(Dtype.int8))
    out, state = module(packed)
    assert isinstance(out, nn.utils.rnn.PackedSequence) and len(state) == 2
    torch.testing.assert_close(out.data, before, atol=0.02, rtol=0)
    assert not torch.equal(out.data, before)


def test_a_cell():
    torch.manual_seed(0)
    cell = nn.GRUCell(5, 6)
    x, h, twin = torch.randn(2, 5), torch.randn(2, 6), copy.deepcopy(cell)
    twin.weight_ih.data = rounded(cell.weight_ih)
    set_weight(cell, "weight_ih", codes(cell.weight_ih))
    torch.testing.assert_close(cell(x, h), twin(x, h))
