# SPDX-License-Identifier: Apache-2.0
import json
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape, QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from numerics_reference import LIBRARIES, host

SIDES = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=4)
libraries = st.sampled_from(list(LIBRARIES.values()))
quickly = settings(max_examples=60, deadline=None)


def make(sides):
    return BlockShape(tuple(side for side, _ in sides), tuple(width for _, width in sides))


def numbered(shape):
    return np.arange(prod(shape), dtype=np.float32).reshape(shape)


def windows(blocks):
    for index in np.ndindex(*blocks.counts):
        yield index, tuple(slice(i * width, (i + 1) * width) for i, width in zip(index, blocks.block))


@quickly
@given(libraries, SIDES)
def test_rows_are_blocks_in_order_and_short_ones_repeat_their_own_values(array, sides):
    blocks = make(sides)
    x = numbered(blocks.shape)
    rows = host(blocks.rows(array(x)))
    assert rows.shape == (prod(blocks.counts), prod(blocks.block))
    low, high = (host(side) for side in blocks.extremes(array(x)))
    assert low.shape == high.shape == blocks.counts
    for row, (index, window) in zip(rows, windows(blocks), strict=True):
        assert set(row.tolist()) == set(x[window].reshape(-1).tolist())
        assert (low[index], high[index]) == (x[window].min(), x[window].max())


def test_zero_padding_on_request(array):
    parts = host(BlockShape((3,), (2,)).split(array(np.float32([1, 2, 3])), 0.0))
    assert parts.tolist() == [[1, 2], [3, 0]]


@quickly
@given(libraries, SIDES)
def test_scales_meet_the_elements_of_their_own_block(array, sides):
    blocks = make(sides)
    scales = numbered(blocks.counts)
    view = blocks.view(array(np.zeros(blocks.shape, np.float32)))
    assert prod(view.shape) == prod(blocks.shape), "nothing is padded"
    seen = host((view + blocks.broadcast(array(scales))).reshape(blocks.shape))
    for index, window in windows(blocks):
        assert (seen[window] == scales[index]).all()


@quickly
@given(st.booleans(), SIDES)
def test_merged_axes_give_every_element_the_same_scale(keep_last, sides):
    blocks = make(sides)
    merged = blocks.merged(keep_last=keep_last)
    assert prod(merged.counts) == prod(blocks.counts)

    def owner(some):
        scales = numbered(blocks.counts).reshape(some.counts)
        return (some.view(np.zeros(some.shape)) + some.broadcast(scales)).reshape(-1)

    assert np.array_equal(owner(merged), owner(blocks))
    if keep_last and blocks.shape:
        assert (merged.shape[-1], merged.block[-1]) == (blocks.shape[-1], blocks.block[-1])


@pytest.mark.parametrize(
    ("shape", "block", "merged"),
    [
        ((64, 32), (64, 32), ((2048,), (2048,))),  # per tensor
        ((64, 32, 3, 3), (1, 32, 3, 3), ((18432,), (288,))),  # per channel
        ((8, 64, 32), (1, 1, 16), ((16384,), (16,))),  # groups, with a stack
        ((64, 33), (1, 16), ((64, 33), (1, 16))),  # the last group is short
        ((64, 32), (64, 1), ((64, 32), (64, 1))),  # columns
    ],
)
def test_common_granularities_merge_to_few_axes(shape, block, merged):
    assert BlockShape(shape, block).merged() == BlockShape(*merged)


GRIDS = st.builds(
    QuantizationGrid,
    dtype=st.sampled_from(Dtype),
    granularity=st.sampled_from(QSchemeType),
    axis=st.integers(-3, 3),
    group_size=st.sampled_from([-1, 1, 32, 128]),
    block_size=st.tuples(st.integers(1, 128), st.integers(1, 128)),
    symmetric=st.booleans(),
    scale_type=st.sampled_from(ScaleType),
    scale_mode=st.sampled_from(ScaleMode),
    rounding=st.sampled_from(RoundType),
    float_zero=st.booleans(),
    seed=st.integers(0, 2**40),
)


@quickly
@given(GRIDS)
def test_a_grid_comes_back_from_json(grid):
    assert QuantizationGrid.from_dict(json.loads(json.dumps(grid.to_dict()))) == grid


def test_all_errors_of_a_grid_at_once():
    assert QuantizationGrid.from_dict({"dtype": "int4"}) == QuantizationGrid(Dtype.int4)
    with pytest.raises(UsageError) as caught:
        QuantizationGrid.from_dict({"granularity": "per_grop", "symetric": True, "axis": True, "block_size": [1]})
    for part in ("no dtype", "per_group", "'symetric'", "axis: True", "block_size: [1]"):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", [ScaleType.pof2, ScaleType.float8_e8m0fnu, ScaleType.float8_e5m3])
def test_a_signed_scale_needs_a_type_with_a_sign(kind):
    with pytest.raises(UsageError, match="full_range"):
        QuantizationGrid(Dtype.int4, full_range=True, scale_type=kind)
    QuantizationGrid(Dtype.fp4, full_range=True, scale_type=kind)  # means nothing to floats
    signed = {dtype for dtype in Dtype if QuantizationGrid(dtype, full_range=True).signed_scale}
    assert signed == {dtype for dtype in Dtype if dtype.name.startswith("int")}


@pytest.mark.parametrize(
    ("dtype", "symmetric", "shifted"),
    [
        ("int8", True, False),
        ("int8", False, True),
        ("uint8", True, True),
        ("uint8", False, True),
        ("fp4", False, False),
    ],
)
def test_which_grids_have_a_zero_point(dtype, symmetric, shifted):
    assert QuantizationGrid(Dtype[dtype], symmetric=symmetric).has_zero_point == shifted


@pytest.mark.parametrize(
    ("fields", "shape", "stack", "block"),
    [
        ({}, (8, 64), 0, (8, 64)),
        ({"granularity": "per_channel"}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_channel", "axis": -1}, (8, 64), 0, (8, 1)),
        ({"granularity": "per_token"}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_group", "group_size": 32}, (8, 64), 0, (1, 32)),
        ({"granularity": "per_group", "group_size": 32, "axis": 1}, (64, 8), 0, (32, 1)),
        ({"granularity": "per_group", "group_size": 100}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_group"}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_group", "group_size": 4}, (8, 16, 3, 3), 0, (1, 4, 3, 3)),
        ({"granularity": "per_group", "group_size": 4}, (10,), 0, (4,)),
        ({"granularity": "per_block", "block_size": [4, 16]}, (10, 64, 3), 0, (4, 16, 3)),
        ({"granularity": "per_block", "block_size": [4, 16]}, (10,), 0, (10,)),
        ({"granularity": "per_group", "group_size": 32}, (3, 8, 64), 1, (1, 1, 32)),
        ({"granularity": "per_channel"}, (0, 5), 0, (1, 5)),
        ({"granularity": "per_group", "group_size": 4}, (), 0, ()),
    ],
)
def test_weight_blocks(fields, shape, stack, block):
    assert QuantizationGrid.from_dict({"dtype": "int8", **fields}).weight_block(shape, stack) == block


@pytest.mark.parametrize(
    ("fields", "features", "dynamic", "block"),
    [
        ({}, -1, True, (2, 5, 64)),
        ({"granularity": "per_token"}, -1, True, (1, 1, 64)),
        ({"granularity": "per_token"}, 1, True, (1, 5, 1)),
        ({"granularity": "per_token"}, -1, False, (2, 5, 64)),
        ({"granularity": "per_channel"}, -1, False, (2, 5, 1)),
        ({"granularity": "per_group", "group_size": 16}, -1, True, (1, 1, 16)),
        ({"granularity": "per_group", "group_size": 16}, -1, False, (2, 5, 16)),
        ({"granularity": "per_group"}, -1, True, (1, 1, 64)),
        ({"granularity": "per_block", "block_size": [8, 16]}, -1, True, (1, 1, 16)),
        ({"granularity": "per_block", "block_size": [8, 16]}, -1, False, (2, 5, 16)),
    ],
)
def test_activation_blocks(fields, features, dynamic, block):
    grid = QuantizationGrid.from_dict({"dtype": "int8", **fields})
    assert grid.activation_block((2, 5, 64), features=features, dynamic=dynamic) == block


def test_formats_of_the_specifications():
    """OCP MX v1.0, table 1; NVFP4: 16 elements under e4m3; BFP16: 8 elements under an exponent."""
    table = {name: (f.element.name, f.group_size, f.scale_type.name) for name, f in BLOCK_FORMATS.items()}
    assert table == {
        "mxfp4": ("fp4", 32, "float8_e8m0fnu"),
        "mxfp6_e2m3": ("fp6_e2m3", 32, "float8_e8m0fnu"),
        "mxfp6_e3m2": ("fp6_e3m2", 32, "float8_e8m0fnu"),
        "mxfp8_e4m3": ("fp8_e4m3", 32, "float8_e8m0fnu"),
        "mxfp8_e5m2": ("fp8_e5m2", 32, "float8_e8m0fnu"),
        "mxint8": ("int8", 32, "float8_e8m0fnu"),
        "nvfp4": ("fp4", 16, "float8_e4m3fn"),
        "bfp16": ("int8", 8, "float8_e8m0fnu"),
    }
