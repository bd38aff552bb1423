# SPDX-License-Identifier: Apache-2.0
import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewbit.errors import DataError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.description import Description, parts_of
from fewbit.modules.quantized import set_weight
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from quantized_models import GRIDS, encode, mlp, quantize_linears


def described():
    model = quantize_linears(mlp())
    model[0].input_quantizer = ActivationQuantizer(Grid(Dtype.uint8, symmetric=False))
    return Description.of(model)


def test_a_description_is_json_and_comes_back():
    description = described()
    content = json.loads(json.dumps(description.to_dict()))
    assert Description.from_dict(content) == description
    assert content["layers"]["0"]["class"] == "Linear"
    assert content["quantizers"]["0.input_quantizer"]["dynamic"] is True


def test_a_float_model_has_an_empty_one():
    assert Description.of(mlp()) == Description({}, {})


@pytest.mark.parametrize("name", GRIDS)
def test_the_parts_follow_from_the_grid(name):
    layer = nn.Linear(40, 12)
    set_weight(layer, "weight", encode(layer.weight, GRIDS[name]))
    parts = parts_of(layer.coded["weight"])
    real = layer.codes_of("weight").tensors()
    assert {k: (p.dtype, p.shape) for k, p in parts.items()} == {k: (p.dtype, p.shape) for k, p in real.items()}


def paths_of(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths_of(inner, (*path, key))


CONTENT = json.loads(json.dumps(described().to_dict()))
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(-(2**40), 2**40), max_size=3), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from([path for path in paths_of(CONTENT) if path]), ANYTHING, st.booleans())
def test_whatever_stands_in_the_json_is_read_or_refused(path, value, remove):
    content = copy.deepcopy(CONTENT)
    place = content
    for key in path[:-1]:
        place = place[key]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    try:
        read = Description.from_dict(content)
    except DataError as error:
        assert error.code == "manifest" and error.where.startswith("fewbit.json")
    else:
        for part in read.parts().values():
            assert part.is_meta


@pytest.mark.parametrize(
    "change",
    [
        {"axes": [1, 1]},
        {"axes": [0]},
        {"block": [1, 0]},
        {"shape": [24, -40]},
        {"shape": [24, 40.0]},
        {"shape": [2**62, 2**62]},
        {"dtype": "nn"},
        {"dtype": "float33"},
        {"groups": 5},
        {"groups": 0},
        {"groups": True},
        {"grid": {"dtype": "int5x"}},
        {"grid": {}},
        {"grid": None},
    ],
)
def test_weights_that_cannot_be(change):
    content = copy.deepcopy(CONTENT)
    content["layers"]["0"]["weights"]["weight"] |= change
    with pytest.raises(DataError, match="quantized tensor") as error:
        Description.from_dict(content)
    assert error.value.where == "fewbit.json: 0.weight"


def test_nothing_is_allocated_for_a_size_in_the_file():
    content = copy.deepcopy(CONTENT)
    content["layers"]["0"]["weights"]["weight"] |= {"shape": [2**40, 2**20], "block": [1, 16]}
    part = Description.from_dict(content).parts()["0.weight_packed"]
    assert part.is_meta and part.shape == torch.Size([2**40, 2**19])
