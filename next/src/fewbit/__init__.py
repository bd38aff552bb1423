# SPDX-License-Identifier: Apache-2.0
"""fewbit makes models smaller and faster, and measures that they still work.

Names are imported on first use: `import fewbit` loads no framework, compiles nothing and prints nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0.dev0"

if TYPE_CHECKING:
    from fewbit.api.capture import capture as capture
    from fewbit.api.compare import compare as compare
    from fewbit.api.data import check_dataset as check_dataset
    from fewbit.api.data import fix_dataset as fix_dataset
    from fewbit.api.data import open_dataset as open_dataset
    from fewbit.api.export import export as export
    from fewbit.api.load import load as load
    from fewbit.api.model_quantizer import ModelQuantizer as ModelQuantizer
    from fewbit.api.nncf import compress_weights as compress_weights
    from fewbit.api.plan import plan as plan
    from fewbit.api.quantize import quantize as quantize
    from fewbit.config.config import Config as Config
    from fewbit.config.config import QConfig as QConfig
    from fewbit.config.config import QLayerConfig as QLayerConfig
    from fewbit.config.config import QuantizationConfig as QuantizationConfig
    from fewbit.config.patterns import IgnoredScope as IgnoredScope
    from fewbit.config.patterns import Subgraph as Subgraph
    from fewbit.config.presets import CompressWeightsMode as CompressWeightsMode
    from fewbit.config.spec import QTensorConfig as QTensorConfig
    from fewbit.config.spec import QuantizationSpec as QuantizationSpec
    from fewbit.data.capture.wrapper import NumpyExportWrapper as NumpyExportWrapper
    from fewbit.data.dataset import Dataset as Dataset
    from fewbit.data.loading import DatasetConfig as DatasetConfig
    from fewbit.data.loading import device_aware_data_loading as device_aware_data_loading
    from fewbit.data.loading import generate_dataset_config as generate_dataset_config
    from fewbit.data.loading import get_custom_data_collator as get_custom_data_collator
    from fewbit.data.types import DataReport as DataReport
    from fewbit.data.types import Issue as Issue
    from fewbit.data.types import Location as Location
    from fewbit.data.types import Sample as Sample
    from fewbit.errors import DataError as DataError
    from fewbit.errors import FewbitError as FewbitError
    from fewbit.errors import FewbitWarning as FewbitWarning
    from fewbit.errors import MissingLibraryError as MissingLibraryError
    from fewbit.errors import ModelError as ModelError
    from fewbit.errors import ResourceError as ResourceError
    from fewbit.errors import UsageError as UsageError
    from fewbit.numerics.dtypes import Dtype as Dtype
    from fewbit.numerics.granularity import QSchemeType as QSchemeType
    from fewbit.numerics.rounding import RoundType as RoundType
    from fewbit.numerics.scales import ScaleMode as ScaleMode
    from fewbit.numerics.scales import ScaleType as ScaleType
    from fewbit.observers.histogram import PerTensorHistogramObserver as PerTensorHistogramObserver
    from fewbit.observers.min_max import PerChannelMinMaxObserver as PerChannelMinMaxObserver
    from fewbit.observers.min_max import PerGroupMinMaxObserver as PerGroupMinMaxObserver
    from fewbit.observers.min_max import PerTensorMinMaxObserver as PerTensorMinMaxObserver
    from fewbit.observers.mse import PerTensorMSEObserver as PerTensorMSEObserver
    from fewbit.observers.percentile import PerTensorPercentileObserver as PerTensorPercentileObserver
    from fewbit.quantization.plan import Plan as Plan
    from fewbit.record.schema import Record as Record

_PUBLIC = {
    "fewbit.api.capture": ("capture",),
    "fewbit.api.compare": ("compare",),
    "fewbit.api.data": ("check_dataset", "fix_dataset", "open_dataset"),
    "fewbit.api.model_quantizer": ("ModelQuantizer",),
    "fewbit.api.nncf": ("compress_weights",),
    "fewbit.api.export": ("export",),
    "fewbit.api.load": ("load",),
    "fewbit.api.plan": ("plan",),
    "fewbit.api.quantize": ("quantize",),
    "fewbit.config.config": ("Config", "QConfig", "QLayerConfig", "QuantizationConfig"),
    "fewbit.config.patterns": ("IgnoredScope", "Subgraph"),
    "fewbit.config.presets": ("CompressWeightsMode",),
    "fewbit.config.spec": ("QTensorConfig", "QuantizationSpec"),
    "fewbit.data.capture.wrapper": ("NumpyExportWrapper",),
    "fewbit.data.dataset": ("Dataset",),
    "fewbit.data.loading": (
        "DatasetConfig", "device_aware_data_loading", "generate_dataset_config", "get_custom_data_collator",
    ),
    "fewbit.data.types": ("DataReport", "Issue", "Location", "Sample"),
    "fewbit.errors": (
        "DataError", "FewbitError", "FewbitWarning", "MissingLibraryError", "ModelError", "ResourceError", "UsageError",
    ),
    "fewbit.numerics.dtypes": ("Dtype",),
    "fewbit.numerics.granularity": ("QSchemeType",),
    "fewbit.numerics.rounding": ("RoundType",),
    "fewbit.numerics.scales": ("ScaleMode", "ScaleType"),
    "fewbit.observers.histogram": ("PerTensorHistogramObserver",),
    "fewbit.observers.min_max": ("PerChannelMinMaxObserver", "PerGroupMinMaxObserver", "PerTensorMinMaxObserver"),
    "fewbit.observers.mse": ("PerTensorMSEObserver",),
    "fewbit.observers.percentile": ("PerTensorPercentileObserver",),
    "fewbit.quantization.plan": ("Plan",),
    "fewbit.record.schema": ("Record",),
}  # fmt: skip
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fewbit' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
