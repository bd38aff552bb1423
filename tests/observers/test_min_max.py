# SPDX-License-Identifier: Apache-2.0
import torch

import fewbit
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range


def test_the_extremes_of_everything_seen():
    observer = fewbit.MinMaxObserver()
    observer.observe(torch.tensor([[1.0, 2.0], [-5.0, -4.0]]))
    observer.observe(torch.tensor([[1.5], [7.0]]))
    low, high = observer.range(Grid(Dtype.int8))
    assert low.tolist() == [1.0, -5.0] and high.tolist() == [2.0, 7.0]


def test_negatives_are_kept_in_an_unsigned_type():
    """Defect 8, the observer's part: the range says that there are negative values."""
    observer = fewbit.PerTensorMinMaxObserver()
    observer.observe(torch.tensor([[-1.0, 0.5]]))
    qparams = from_range(*observer.range(Grid(Dtype.uint8)), Grid(Dtype.uint8), (2,))
    assert qparams.zero_point is not None and qparams.zero_point.item() == 128


def test_half_precision_is_taken_as_float32():
    observer = fewbit.MinMaxObserver()
    observer.observe(torch.tensor([[1.0, -3.0]], dtype=torch.bfloat16))
    assert observer.state()["low"].dtype is torch.float32


def test_public_names_stand_for_members():
    said = {
        "PerTensorMinMaxObserver": ("min_max", QSchemeType.per_tensor),
        "PerChannelMinMaxObserver": ("min_max", QSchemeType.per_channel),
        "PerGroupMinMaxObserver": ("min_max", QSchemeType.per_group),
        "PerTensorHistogramObserver": ("histogram", QSchemeType.per_tensor),
        "PerTensorPercentileObserver": ("percentile", QSchemeType.per_tensor),
        "PerTensorMSEObserver": ("mse", QSchemeType.per_tensor),
        "MinMaxObserver": ("min_max", None),
        "MovingAverageObserver": ("moving_average", None),
        "HistogramObserver": ("histogram", None),
        "PercentileObserver": ("percentile", None),
        "MSEObserver": ("mse", None),
        "EntropyObserver": ("entropy", None),
    }
    for name, wanted in said.items():
        assert (getattr(fewbit, name).name, getattr(fewbit, name).granularity) == wanted


def test_a_name_that_says_per_channel_observes_groups():
    """The seed pairs PerChannelMinMaxObserver with per_group: the scheme's granularity counts."""
    grid = Grid(Dtype.int4, QSchemeType.per_group, axis=0, group_size=2)
    observer = fewbit.PerChannelMinMaxObserver()
    observer.observe(Blocks((1, 4), grid.weight_block((1, 4))).rows(torch.tensor([[1.0, 2.0, 3.0, 4.0]])))
    assert [end.tolist() for end in observer.range(grid)] == [[1.0, 3.0], [2.0, 4.0]]
