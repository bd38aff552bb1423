# SPDX-License-Identifier: Apache-2.0
"""A float model, a description and tensors give the quantized model again, or a list of what does not fit."""

import pytest
import torch
from torch import nn

from fewbit.errors import DataError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.description import Description
from fewbit.modules.inventory import take
from fewbit.modules.kv_cache import CacheCodec, KeyValueCodecs, attach_cache
from fewbit.modules.misfit import cache_place
from fewbit.modules.quantized import is_quantized
from fewbit.modules.skeleton import Contents, rebuild
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from quantized_models import mlp, numbers, quantize_linears
from small_models import opt, token_ids


def contents_of(model):
    """What a file would hold, without the file."""
    inventory = take(model)
    tensors = {name: entry.read().detach() for name, entry in inventory.entries.items()}
    kinds = dict(inventory.kinds)
    for alias, name in inventory.aliases.items():
        tensors[alias], kinds[alias] = tensors[name], kinds[name]
    return Contents(Description.of(model), tensors, kinds)


def with_quantizers(model):
    low, high = torch.tensor([-2.0]), torch.tensor([3.0])
    grid = Grid(Dtype.uint8, symmetric=False)
    model[0].input_quantizer = ActivationQuantizer(grid, fixed=from_range(low, high, grid, (1,)))
    model[2].output_quantizer = ActivationQuantizer(Grid(Dtype.fp8_e4m3, QSchemeType.per_token))
    return model


def test_the_same_outputs_from_a_model_without_values():
    model = with_quantizers(quantize_linears(mlp()))
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8))
    made = rebuild(empty, contents_of(model))
    x = numbers(5, 40)
    assert torch.equal(made(x), model(x))
    assert is_quantized(made[0]) and made[0].coded == model[0].coded
    assert made[0].input_quantizer.scale.dtype is torch.float32 and made[2].output_quantizer.dynamic


def test_the_dtype_is_that_of_the_codes_and_not_of_the_float_model():
    model = quantize_linears(mlp().bfloat16())
    made = rebuild(mlp(), contents_of(model))
    assert made[0].weight.dtype is torch.bfloat16 and made[0].bias.dtype is torch.bfloat16
    x = numbers(5, 40).bfloat16()
    assert torch.equal(made(x), model(x))


def test_recurrent_layers_left_in_float_read_their_new_weights():
    torch.manual_seed(0)
    model, other = nn.LSTM(6, 5).eval(), nn.LSTM(6, 5).eval()
    x = numbers(7, 2, 6)
    assert not torch.equal(other(x)[0], model(x)[0])
    assert torch.equal(rebuild(other, contents_of(model))(x)[0], model(x)[0])


def test_tied_parameters_stay_one():
    model = opt()
    made = rebuild(opt(tied=False), contents_of(model))
    assert made.lm_head.weight is made.model.decoder.embed_tokens.weight
    assert torch.equal(made(token_ids()).logits, model(token_ids()).logits)


def test_a_module_under_two_names_is_quantized_once():
    inner = nn.Linear(16, 16)
    model = quantize_linears(nn.Sequential(inner, inner))
    assert list(Description.of(model).layers) == ["0"]
    fresh = nn.Linear(16, 16)
    made = rebuild(nn.Sequential(fresh, fresh), contents_of(model))
    assert made[0] is made[1] and torch.equal(made(numbers(2, 16)), model(numbers(2, 16)))


def test_caches_are_coded_again():
    model = opt()
    grid = Grid(Dtype.int8, QSchemeType.per_token)
    pair = KeyValueCodecs(CacheCodec(ActivationQuantizer(grid)), None)
    attach_cache(model, {0: pair})
    made = rebuild(opt(), contents_of(model))
    ids = token_ids()

    def logits(network):
        past = network(ids[:, :-1], use_cache=True).past_key_values
        return network(ids[:, -1:], past_key_values=past).logits

    assert torch.equal(logits(made), logits(model)) and not torch.equal(logits(made), logits(opt()))
    assert "fewbit_cache" in dict(made.named_children())


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("fewbit_cache.0.key.quantizer", ("", 0, "key")),
        ("a.b.fewbit_cache.12.value.quantizer", ("a.b", 12, "value")),
        ("fewbit_cache.x.key.quantizer", None),
        ("fewbit_cache.0.key", None),
        ("fewbit_cache", None),
        ("0.input_quantizer", None),
    ],
)
def test_places_in_caches(path, place):
    assert cache_place(path) == place


def test_encoder_layers_do_not_pass_quantized_parts_by():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    fresh = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    low, high = torch.tensor([-0.1]), torch.tensor([0.1])
    grid = Grid(Dtype.int2)
    quantize_linears(model.layers[0].linear1)
    model.layers[0].linear1.input_quantizer = ActivationQuantizer(grid, fixed=from_range(low, high, grid, (1,)))
    from fewbit.modules.fast_paths import close_fast_paths

    close_fast_paths(model)
    made = rebuild(fresh, contents_of(model))
    with torch.no_grad():
        assert torch.equal(made(numbers(2, 3, 16)), model(numbers(2, 3, 16)))


def other(*layers):
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("model", "faults"),
    [
        (other(nn.Linear(40, 24), nn.ReLU()), ["no layer 2", "no place for the parameter 2.bias"]),
        (other(nn.Linear(40, 23), nn.ReLU(), nn.Linear(23, 8)), ["0.weight is [23, 40], not [24, 40]"]),
        (other(nn.Linear(40, 24, bias=False), nn.ReLU(), nn.Linear(24, 8)), ["no place for the parameter 0.bias"]),
        (
            other(nn.Linear(40, 24), nn.PReLU(), nn.Linear(24, 8)),
            ["no parameter 1.weight in the file"],
        ),
        (other(nn.Bilinear(40, 1, 24), nn.ReLU(), nn.Linear(24, 8)), ["0 is a Bilinear, not a Linear"]),
        (quantize_linears(mlp()), ["0 is quantized already"]),
        (other(nn.ReLU(), nn.ReLU(), nn.Linear(24, 8)), ["0 has no parameter weight"]),
    ],
)
def test_a_model_of_another_build_is_refused_with_every_fault_and_left_alone(model, faults):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(DataError) as error:
        rebuild(model, contents_of(quantize_linears(mlp())))
    assert error.value.code == "model-differs" and all(fault in error.value.what for fault in faults)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("0.forward", "attribute"), ("0.forward", "buffer"), ("0.extra", "parameter"), ("9.x", "buffer"),
        ("0.x_packed", "code"), ("", "buffer"), ("0.weight", "buffer"),
    ],
)  # fmt: skip
def test_tensors_that_have_no_place(name, kind):
    contents = contents_of(quantize_linears(mlp()))
    contents.tensors[name] = torch.ones(1)
    contents.kinds[name] = kind
    with pytest.raises(DataError, match="no place"):
        rebuild(mlp(), contents)


def test_a_float_tensor_of_another_shape_does_not_fit():
    contents = contents_of(quantize_linears(mlp()))
    contents.tensors["0.bias"] = torch.ones(3)
    with pytest.raises(DataError, match=r"0\.bias is \[24\], not \[3\]"):
        rebuild(mlp(), contents)


def test_a_quantizer_needs_its_place_and_its_scale():
    model = with_quantizers(quantize_linears(mlp()))
    contents = contents_of(model)
    del contents.tensors["0.input_quantizer.scale"]
    with pytest.raises(DataError, match=r"no scale for the quantizer 0.input_quantizer"):
        rebuild(mlp(), contents)
    model = quantize_linears(mlp())
    model[1].input_quantizer = ActivationQuantizer(Grid(Dtype.int8))  # a ReLU has no such place
    with pytest.raises(DataError, match=r"no place for the quantizer 1.input_quantizer"):
        rebuild(mlp(), contents_of(model))


def test_buffers_that_came_with_use_are_kept():
    model = quantize_linears(mlp())
    model[1].register_buffer("seen", torch.tensor(3.0))
    model[1].note = torch.tensor(4.0)
    made = rebuild(mlp(), contents_of(model))
    assert made[1].seen == 3 and made[1].note == 4 and "1.seen" not in made.state_dict()
