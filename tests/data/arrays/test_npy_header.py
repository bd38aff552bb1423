# SPDX-License-Identifier: Apache-2.0
import io

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.npy_header import parse_header


def npy(text: str, version: bytes = b"\x01\x00") -> bytes:
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text.encode("latin-1")


@settings(deadline=None, max_examples=100)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)), st.booleans())
def test_every_plain_array_numpy_saves_is_understood(array, fortran):
    if array.dtype.kind in "mMO" or array.dtype.itemsize == 0:
        return
    file = io.BytesIO()
    np.save(file, np.array(array, order="F" if fortran else "C"))
    info, size = parse_header(file.getvalue())
    assert info.shape == array.shape
    assert info.start + info.nbytes == size == len(file.getvalue())
    assert np.dtype(info.descr) == array.dtype


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'shape': (2L, 3L), 'descr': '<f4', 'fortran_order': False}",
        '{"descr":"<f4","fortran_order":False,"shape":(2,3)}   \n',
    ],
)
@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"])
def test_headers_of_other_writers_are_understood(text, version):
    assert parse_header(npy(text, version))[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,), }", "array-dtype"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }", "array-bomb"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9999999999999), }", "array-bomb"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 40 + "), }", "array-bomb"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "array-header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3), }", "array-header"),
        ("{'descr': '<f4', 'fortran_order': False}", "array-header"),
        ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "array-header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "array-header"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "array-header"),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}", "array-header"),
        ("{'descr': '<f3', 'fortran_order': False, 'shape': (1,)}", "array-header"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (9,)}", "array-header"),
        ("__import__('os').system('true')", "array-header"),
        ("(" * 9000, "array-header"),
        ("", "array-header"),
    ],
)
def test_a_header_that_is_no_plain_array_is_refused(text, code):
    with pytest.raises(ArrayFault) as caught:
        parse_header(npy(text))
    assert caught.value.code == code


def test_bfloat16_written_by_numpy_is_named():
    with pytest.raises(ArrayFault, match="bfloat16"):
        parse_header(npy("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }"))


@pytest.mark.parametrize("head", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\x93NUMPY\x09\x00\x10\x00"])
def test_a_short_or_foreign_file_is_refused(head):
    with pytest.raises(ArrayFault):
        parse_header(head)


def test_a_long_header_is_not_read():
    with pytest.raises(ArrayFault, match="claims a header"):
        parse_header(b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + b" " * 100)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_description_or_a_fault(content):
    for head in (content, b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content):
        try:
            info, claimed = parse_header(head)
        except ArrayFault as fault:
            assert fault.code
        else:
            assert claimed == info.start + info.nbytes
