# SPDX-License-Identifier: Apache-2.0
"""The three strategies of seed 001, as they are printed; the observers' import is the one line that is added."""

import pytest

from fewbit import Config, Dtype, QSchemeType, QuantizationConfig, QuantizationSpec, RoundType, ScaleType
from fewbit.numerics.granularity import BlockShape
from fewbit.observers.min_max import PerChannelMinMaxObserver, PerTensorMinMaxObserver

LINEAR = ["Linear", "Module"]


def weight_only():
    DEFAULT_UINT4_PER_GROUP_ASYM_SPEC = QuantizationSpec(dtype=Dtype.uint4,
                                                        observer_cls=PerChannelMinMaxObserver,
                                                        symmetric=False,
                                                        scale_type=ScaleType.float,
                                                        round_method=RoundType.half_even,
                                                        qscheme=QSchemeType.per_group,
                                                        ch_axis=0,
                                                        is_dynamic=False,
                                                        group_size=32)  # fmt: skip
    DEFAULT_W_UINT4_PER_GROUP_CONFIG = QuantizationConfig(weight=DEFAULT_UINT4_PER_GROUP_ASYM_SPEC)
    return Config(global_quant_config=DEFAULT_W_UINT4_PER_GROUP_CONFIG)


def dynamic():
    INT8_PER_TENSER_DYNAMIC_SPEC = QuantizationSpec(dtype=Dtype.int8,
                                                    qscheme=QSchemeType.per_tensor,
                                                    observer_cls=PerTensorMinMaxObserver,
                                                    symmetric=True,
                                                    scale_type=ScaleType.float,
                                                    round_method=RoundType.half_even,
                                                    is_dynamic=True)  # fmt: skip
    # fmt: off
    DEFAULT_W_INT8_A_INT8_PER_TENSOR_DYNAMIC_CONFIG = QuantizationConfig(input_tensors=INT8_PER_TENSER_DYNAMIC_SPEC,
                                                                         weight=INT8_PER_TENSER_DYNAMIC_SPEC)
    # fmt: on
    return Config(global_quant_config=DEFAULT_W_INT8_A_INT8_PER_TENSOR_DYNAMIC_CONFIG)


def static():
    FP8_PER_TENSOR_SPEC = QuantizationSpec(dtype=Dtype.fp8_e4m3,
                                           qscheme=QSchemeType.per_tensor,
                                           observer_cls=PerTensorMinMaxObserver,
                                           is_dynamic=False)  # fmt: skip
    DEFAULT_W_FP8_A_FP8_PER_TENSOR_CONFIG = QuantizationConfig(input_tensors=FP8_PER_TENSOR_SPEC,
                                                               weight=FP8_PER_TENSOR_SPEC)  # fmt: skip
    return Config(global_quant_config=DEFAULT_W_FP8_A_FP8_PER_TENSOR_CONFIG)


def test_weight_only_has_the_layout_that_runtimes_load():
    layers = weight_only().resolve("model.fc1", LINEAR).quantization
    grid = layers.weight.grid()
    assert (grid.dtype, grid.symmetric, grid.group_size, grid.axis) == (Dtype.uint4, False, 32, 0)
    assert BlockShape((48, 96), grid.weight_block((48, 96))).counts == (48, 3)
    assert layers.input_tensors is None and layers.weight.observer == "min_max"
    assert layers.weight.weight_algorithm == "rtn", "who names an observer gets its range, not another"


def test_dynamic_quantizes_weights_ahead_and_activations_in_each_call():
    layers = dynamic().resolve("model.fc1", LINEAR).quantization
    assert layers.input_tensors.is_dynamic and not layers.weight.is_dynamic
    assert layers.input_tensors.grid().granularity is QSchemeType.per_tensor


def test_static_has_fp8_in_both():
    layers = static().resolve("model.fc1", LINEAR).quantization
    assert layers.weight.grid().dtype is layers.input_tensors.grid().dtype is Dtype.fp8_e4m3
    assert not layers.input_tensors.is_dynamic and layers.bias is None and layers.output_tensors is None


@pytest.mark.parametrize("make", [weight_only, dynamic, static])
def test_they_survive_yaml(make):
    assert Config.from_yaml(make().to_yaml()) == make()


def test_an_observers_class_is_the_same_as_its_name():
    by_class = QuantizationSpec("int8", PerChannelMinMaxObserver)
    assert by_class == QuantizationSpec("int8", "PerChannelMinMaxObserver")
    assert by_class.qscheme is QSchemeType.per_channel
