# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.observers._layout import activation_rows
from numerics.cutting import own


def grid(granularity: QSchemeType, group_size: int = 4) -> Grid:
    return Grid(Dtype.int8, granularity, group_size=group_size, block_size=(3, 4))


def test_activation_rows_by_granularity():
    x = torch.arange(12.0).view(2, 6)
    assert activation_rows(x, grid(QSchemeType.per_tensor)).tolist() == [list(range(12))]
    assert torch.equal(activation_rows(x, grid(QSchemeType.per_channel)), x.T)
    groups = activation_rows(x, grid(QSchemeType.per_group))
    assert groups.tolist() == [[0, 1, 2, 3, 6, 7, 8, 9], [4, 5, 4, 5, 10, 11, 10, 11]]


@given(
    positions=st.integers(0, 5),
    features=st.integers(1, 11),
    group=st.sampled_from([-1, 1, 2, 3, 4, 64]),
    granularity=st.sampled_from(QSchemeType),
)
def test_one_row_for_each_scale_and_no_value_invented(positions, features, group, granularity):
    made = grid(granularity, group)
    x = torch.arange(1.0, 1 + positions * features).view(positions, features)
    rows = activation_rows(x, made)
    shape = (max(positions, 1), features)
    blocks = Blocks(shape, made.activation_block(shape, dynamic=False))
    assert len(rows) == torch.Size(blocks.counts).numel()
    assert set(rows.flatten().tolist()) == set(x.flatten().tolist())
    if positions:
        for row, wanted, inside in zip(rows, blocks.rows(x), own(blocks), strict=True):
            assert set(row.tolist()) == set(wanted[inside].tolist())


@pytest.mark.parametrize("granularity", [QSchemeType.per_tensor, QSchemeType.per_channel])
def test_nothing_is_copied_where_a_view_will_do(granularity):
    x = torch.randn(8, 4)
    assert activation_rows(x, grid(granularity)).data_ptr() == x.data_ptr()
