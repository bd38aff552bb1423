# SPDX-License-Identifier: Apache-2.0
"""fewbit: a model and a folder of data in, the smallest model that still gives the right answers out.

The public names are flat and loaded on first use: `import fewbit` alone imports nothing heavy.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` for it would cost more than all the rest

# name -> the module that defines it
_PUBLIC = {
    "Dataset": "fewbit.data.dataset",
    "open_dataset": "fewbit.data.dataset",
    "check_dataset": "fewbit.data.check",
    "fix_dataset": "fewbit.data.fixing",
    "DataReport": "fewbit.data.findings",
    "Finding": "fewbit.data.findings",
    "Sample": "fewbit.data.sample",
    "capture": "fewbit.data.capture",
    "NumpyExportWrapper": "fewbit.data.export_wrapper",
    "get_custom_data_collator": "fewbit.data.collate",
    "device_aware_data_loading": "fewbit.data.loading",
    "DatasetConfig": "fewbit.data.config",
    "generate_dataset_config": "fewbit.data.config",
    "Config": "fewbit.schemes.config",
    "QConfig": "fewbit.schemes.config",
    "QuantizationConfig": "fewbit.schemes.layer",
    "QLayerConfig": "fewbit.schemes.layer",
    "QuantizationSpec": "fewbit.schemes.spec",
    "QTensorConfig": "fewbit.schemes.spec",
    "IgnoredScope": "fewbit.schemes.scope",
    "CompressWeightsMode": "fewbit.schemes.modes",
    "Dtype": "fewbit.numerics.dtypes",
    "QSchemeType": "fewbit.numerics.blocks",
    "ScaleType": "fewbit.numerics.scales",
    "RoundType": "fewbit.numerics.rounding",
    "MinMaxObserver": "fewbit.observers.min_max",
    "MovingAverageObserver": "fewbit.observers.moving_average",
    "HistogramObserver": "fewbit.observers.histogram",
    "PercentileObserver": "fewbit.observers.percentile",
    "MSEObserver": "fewbit.observers.mse",
    "EntropyObserver": "fewbit.observers.entropy",
    "PerTensorMinMaxObserver": "fewbit.observers._names",
    "PerChannelMinMaxObserver": "fewbit.observers._names",
    "PerGroupMinMaxObserver": "fewbit.observers._names",
    "PerTensorHistogramObserver": "fewbit.observers._names",
    "PerTensorPercentileObserver": "fewbit.observers._names",
    "PerTensorMSEObserver": "fewbit.observers._names",
    "ModelQuantizer": "fewbit.engine.quantizer",
    "quantize": "fewbit.engine.verbs",
    "quantize_with_accuracy_control": "fewbit.engine.accuracy",
    "compare": "fewbit.engine.comparing",
    "compress_weights": "fewbit.engine.verbs",
    "merge_statistics": "fewbit.engine.merging",
    "plan": "fewbit.engine.verbs",
    "Plan": "fewbit.engine.plan",
    "export": "fewbit.engine.delivering",
    "load": "fewbit.engine.delivering",
    "finetune": "fewbit.tuning.finetune",
    "sparsify": "fewbit.sparsity.verb",
    "Recipe": "fewbit.sparsity.recipe",
    "Record": "fewbit.record",
    "FewbitError": "fewbit.errors",
    "DataError": "fewbit.errors",
    "UsageError": "fewbit.errors",
    "MissingLibrary": "fewbit.errors",
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from fewbit.data.capture import capture
    from fewbit.data.check import check_dataset
    from fewbit.data.collate import get_custom_data_collator
    from fewbit.data.config import DatasetConfig, generate_dataset_config
    from fewbit.data.dataset import Dataset, open_dataset
    from fewbit.data.export_wrapper import NumpyExportWrapper
    from fewbit.data.findings import DataReport, Finding
    from fewbit.data.fixing import fix_dataset
    from fewbit.data.loading import device_aware_data_loading
    from fewbit.data.sample import Sample
    from fewbit.engine.accuracy import quantize_with_accuracy_control
    from fewbit.engine.comparing import compare
    from fewbit.engine.delivering import export, load
    from fewbit.engine.merging import merge_statistics
    from fewbit.engine.plan import Plan
    from fewbit.engine.quantizer import ModelQuantizer
    from fewbit.engine.verbs import compress_weights, plan, quantize
    from fewbit.errors import DataError, FewbitError, MissingLibrary, UsageError
    from fewbit.numerics.blocks import QSchemeType
    from fewbit.numerics.dtypes import Dtype
    from fewbit.numerics.rounding import RoundType
    from fewbit.numerics.scales import ScaleType
    from fewbit.observers._names import (
        PerChannelMinMaxObserver,
        PerGroupMinMaxObserver,
        PerTensorHistogramObserver,
        PerTensorMinMaxObserver,
        PerTensorMSEObserver,
        PerTensorPercentileObserver,
    )
    from fewbit.observers.entropy import EntropyObserver
    from fewbit.observers.histogram import HistogramObserver
    from fewbit.observers.min_max import MinMaxObserver
    from fewbit.observers.moving_average import MovingAverageObserver
    from fewbit.observers.mse import MSEObserver
    from fewbit.observers.percentile import PercentileObserver
    from fewbit.record import Record
    from fewbit.schemes.config import Config, QConfig
    from fewbit.schemes.layer import QLayerConfig, QuantizationConfig
    from fewbit.schemes.modes import CompressWeightsMode
    from fewbit.schemes.scope import IgnoredScope
    from fewbit.schemes.spec import QTensorConfig, QuantizationSpec
    from fewbit.sparsity.recipe import Recipe
    from fewbit.sparsity.verb import sparsify
    from fewbit.tuning.finetune import finetune


def __getattr__(name: str) -> object:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'fewbit' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
