# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from transformers import BatchEncoding

from fewbit.data.objects.leaf import decode, encode
from fewbit.data.objects.spool import Spooled
from fewbit.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::fewbit.data.objects.spool.SpoolWarning")

leaves = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text() | st.binary()


@given(leaves)
def test_a_leaf_comes_back_exactly(leaf):
    again = decode(*encode(leaf))
    assert type(again) is type(leaf)
    assert again == leaf or (math.isnan(leaf) and math.isnan(again))


@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
@settings(deadline=None)
def test_an_array_comes_back_bit_for_bit(array):
    again = decode(*encode(array))
    assert again.dtype == array.dtype and again.shape == array.shape and again.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_a_tensor_comes_back_bit_for_bit(dtype, shape):
    tensor = torch.rand(shape).mul(9).to(dtype)
    again = decode(*encode(tensor))
    assert again.dtype == dtype and again.shape == tensor.shape
    assert torch.equal(again.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_elements_come_back_in_their_own_containers():
    picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    element = BatchEncoding({"ids": torch.ones(1, 2), "pair": (1, [picture])})
    source = Spooled(iter([element, {"x": 1}]), batched=True)
    list(source)
    again = source.get(0)
    assert isinstance(again, BatchEncoding) and again["pair"][1][0].tobytes() == picture.tobytes()


def test_what_has_no_safe_form_is_refused_with_a_way_out():
    with pytest.raises(DataError, match="cannot be kept on disk") as caught:
        list(Spooled(iter([object()]), batched=True))
    assert "Dataset(lambda" in caught.value.try_


def test_an_error_in_the_generator_names_the_element():
    def generate():
        yield 1
        raise RuntimeError("broken pipe")

    with pytest.raises(DataError, match="broken pipe") as caught:
        list(Spooled(generate(), batched=True))
    assert caught.value.where == "element 1"
