# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit import CompressWeightsMode
from fewbit.errors import UsageError
from fewbit.schemes.widths import formats_of, modes_for

FAMILY = ("int2_sym", "int3_sym", "int4_sym", "int8_sym")


@pytest.mark.parametrize(
    ("mode", "bits", "expected"),
    [
        (None, None, ("int8_asym",)),
        ("nf4", None, ("nf4",)),
        (None, 2, ("int2_sym",)),
        (None, 3.0, ("int3_sym",)),
        (None, 4, ("int4_sym",)),
        (None, 8, ("int8_sym",)),
        ("int4_asym", 4, ("int4_asym",)),
        ("mxfp4", 4, ("mxfp4",)),
        (None, 4.5, FAMILY),
        (None, 5, FAMILY),
        ("int8_sym", 6, FAMILY),
        ("int4_asym", 4.5, ("int4_asym", "int8_asym")),
        (["int8_sym", CompressWeightsMode.NF4], 4.5, ("nf4", "int8_sym")),
        (["int4_sym", "int8_sym"], 8, ("int4_sym", "int8_sym")),
    ],
)
def test_bits_are_a_mode_or_several(mode, bits, expected):
    assert modes_for(mode, bits) == expected


@pytest.mark.parametrize(
    ("mode", "bits", "says"),
    [
        ("int4_sym", 8, "which has 4"),
        ("nf4", 4.5, "mode=\\['nf4', 'int8_sym'\\]"),
        (["int4_sym"], 4.5, "two or more"),
        (["int4_sym", "int8_sym"], None, "no bits"),
        (None, True, "number"),
        (None, 0.5, "number"),
        (None, "4", "number"),
        (None, float("nan"), "number"),
        ("int5_sym", 5, "int5_sym"),
    ],
)
def test_what_cannot_be_is_told(mode, bits, says):
    with pytest.raises(UsageError, match=says):
        modes_for(mode, bits)


def test_eight_bits_take_the_groups_of_what_lies_beside_them():
    specs = formats_of(FAMILY)
    assert [specs[name].group_size for name in FAMILY] == [32, 128, 128, 128]
    wide = specs["int8_sym"].over(specs["int4_sym"]).grid()  # as a layer's entry inherits from the rest of a model
    assert (wide.group_size, wide.full_range, wide.scale_type.name) == (128, False, "bfloat16")
    assert {spec.group_size for spec in formats_of(FAMILY, group_size=64).values()} == {64}
    alone = formats_of(["int8_sym", "int8_asym"])
    assert all(spec.grid().group_size == -1 for spec in alone.values())
