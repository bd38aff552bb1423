# SPDX-License-Identifier: Apache-2.0
"""Observers under names that say a granularity. A scheme takes the observer from them, and has its own granularity."""

from __future__ import annotations

from fewbit.numerics.blocks import QSchemeType
from fewbit.observers.histogram import HistogramObserver
from fewbit.observers.min_max import MinMaxObserver
from fewbit.observers.mse import MSEObserver
from fewbit.observers.percentile import PercentileObserver


class PerTensorMinMaxObserver(MinMaxObserver):
    """`min_max` over the whole tensor."""

    granularity = QSchemeType.per_tensor


class PerChannelMinMaxObserver(MinMaxObserver):
    """`min_max` of each channel."""

    granularity = QSchemeType.per_channel


class PerGroupMinMaxObserver(MinMaxObserver):
    """`min_max` of each group."""

    granularity = QSchemeType.per_group


class PerTensorHistogramObserver(HistogramObserver):
    """`histogram` over the whole tensor."""

    granularity = QSchemeType.per_tensor


class PerTensorPercentileObserver(PercentileObserver):
    """`percentile` over the whole tensor."""

    granularity = QSchemeType.per_tensor


class PerTensorMSEObserver(MSEObserver):
    """`mse` over the whole tensor."""

    granularity = QSchemeType.per_tensor
