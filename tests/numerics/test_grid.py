# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType

GRIDS = st.builds(
    Grid,
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


@given(GRIDS)
def test_a_grid_comes_back_from_json(grid):
    assert Grid.from_dict(json.loads(json.dumps(grid.to_dict()))) == grid


def test_a_dict_of_defaults_may_be_short_and_uses_names():
    assert Grid.from_dict({"dtype": "int4"}) == Grid(Dtype.int4)
    full = Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu).to_dict()
    assert full == {
        "dtype": "fp4",
        "granularity": "per_group",
        "axis": 0,
        "group_size": 32,
        "block_size": [128, 128],
        "symmetric": True,
        "full_range": False,
        "scale_type": "float8_e8m0fnu",
        "scale_mode": "even",
        "rounding": "half_even",
        "float_zero": False,
        "seed": 0,
    }


def test_all_faults_of_a_dict_are_named_at_once():
    with pytest.raises(UsageError) as caught:
        Grid.from_dict({"granularity": "per_grop", "symetric": True, "axis": True, "block_size": [1]})
    for part in ("dtype is missing", "'per_group'", "'symmetric'", "axis: True", "block_size: [1]"):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", [ScaleType.pof2, ScaleType.float8_e8m0fnu, ScaleType.float8_e5m3])
def test_a_signed_scale_needs_a_type_with_a_sign(kind):
    with pytest.raises(UsageError, match="full_range"):
        Grid(Dtype.int4, full_range=True, scale_type=kind)
    Grid(Dtype.fp4, full_range=True, scale_type=kind)  # says nothing of floats


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
def test_who_has_a_zero_point(dtype, symmetric, shifted):
    assert Grid(Dtype[dtype], symmetric=symmetric).has_zero_point == shifted


@pytest.mark.parametrize(
    ("fields", "shape", "stack", "block"),
    [
        ({}, (8, 64), 0, (8, 64)),
        ({"granularity": "per_channel"}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_channel", "axis": 1}, (8, 64), 0, (8, 1)),
        ({"granularity": "per_channel", "axis": -1}, (8, 64), 0, (8, 1)),
        ({"granularity": "per_token"}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_group", "group_size": 32}, (8, 64), 0, (1, 32)),
        ({"granularity": "per_group", "group_size": 32, "axis": 1}, (64, 8), 0, (32, 1)),
        ({"granularity": "per_group", "group_size": 100}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_group"}, (8, 64), 0, (1, 64)),
        ({"granularity": "per_group", "group_size": 4}, (8, 16, 3, 3), 0, (1, 4, 3, 3)),
        ({"granularity": "per_group", "group_size": 4}, (10,), 0, (4,)),
        ({"granularity": "per_block", "block_size": [4, 16]}, (10, 64), 0, (4, 16)),
        ({"granularity": "per_block", "block_size": [4, 16]}, (10, 64, 3), 0, (4, 16, 3)),
        ({"granularity": "per_block", "block_size": [4, 16]}, (10,), 0, (10,)),
        ({}, (3, 8, 64), 1, (1, 8, 64)),
        ({"granularity": "per_group", "group_size": 32}, (3, 8, 64), 1, (1, 1, 32)),
        ({"granularity": "per_channel"}, (0, 5), 0, (1, 5)),
    ],
)
def test_weight_blocks(fields, shape, stack, block):
    assert Grid.from_dict({"dtype": "int8", **fields}).weight_block(shape, stack) == block


@pytest.mark.parametrize("granularity", list(QSchemeType))
def test_a_scalar_is_one_block(granularity):
    grid = Grid(Dtype.int8, granularity, group_size=4)
    assert grid.weight_block(()) == () and grid.activation_block(()) == ()
    assert Blocks((), ()).counts == ()


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
    grid = Grid.from_dict({"dtype": "int8", **fields})
    assert grid.activation_block((2, 5, 64), features=features, dynamic=dynamic) == block


def test_replace_leaves_the_grid_alone():
    grid = Grid(Dtype.int8)
    assert grid.replace(dtype=Dtype.int4).dtype is Dtype.int4 and grid.dtype is Dtype.int8


def test_only_symmetric_signed_integers_carry_their_sign_in_the_scale():
    signed = {dtype for dtype in Dtype if Grid(dtype, full_range=True).signed_scale}
    assert signed == {dtype for dtype in Dtype if dtype.name.startswith("int")}
    assert not Grid(Dtype.int4, full_range=True, symmetric=False).signed_scale and not Grid(Dtype.int4).signed_scale
    with pytest.raises(UsageError, match="full_range"):
        Grid(Dtype.int4, full_range=True, scale_type=ScaleType.pof2)
