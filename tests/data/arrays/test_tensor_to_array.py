# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from fewbit.data.arrays.tensor_to_array import to_array
from fewbit.errors import DataError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 3).to_sparse(),
        torch.ones(2, 3).to(torch.float8_e4m3fn),
        torch.ones(2, 3, dtype=torch.bfloat16),
        np.ones((2, 3), ">f4"),
        [[1.0] * 3] * 2,
    ],
)
def test_every_form_becomes_a_plain_array(tensor):
    array = to_array(tensor)
    assert array.dtype.isnative and array.dtype.kind == "f"
    np.testing.assert_array_equal(array, np.ones((2, 3)))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_dequantized():
    tensor = torch.quantize_per_tensor(torch.tensor([0.5, -1.0]), 0.5, 0, torch.qint8)
    assert to_array(tensor).tolist() == [0.5, -1.0]


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_bfloat16_as_bits_or_as_float32(shape):
    tensor = torch.full(shape, -2.0, dtype=torch.bfloat16)
    assert to_array(tensor).dtype == np.float32
    bits = to_array(tensor, bfloat16="uint16")
    assert bits.dtype == np.uint16 and bits.shape == shape and set(bits.ravel().tolist()) == {0xC000}
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.full(shape, -2.0, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(to_array(array, bfloat16="uint16"), bits)


def test_memory_is_shared_only_when_asked():
    for value in (torch.ones(3), np.ones(3)):
        assert not np.shares_memory(to_array(value), np.asarray(value))
        assert np.shares_memory(to_array(value, copy=False), np.asarray(value))


def test_a_view_as_conjugate_has_its_values():
    assert to_array(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_texts_are_arrays_and_other_objects_are_not():
    assert to_array(["a", "bc"]).tolist() == ["a", "bc"]
    assert to_array(np.array(["a"], object)).tolist() == ["a"]
    for value in ({"a": 1}, None, [[1, 2], [3]], np.array([print]), np.zeros(1, "i4,f4"), torch.ones(1, device="meta")):
        with pytest.raises(DataError, match="input 'x'") as caught:
            to_array(value, name="x")
        assert caught.value.try_
