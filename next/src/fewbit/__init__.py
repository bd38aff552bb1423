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
    from fewbit.api.data import check_dataset as check_dataset
    from fewbit.api.data import fix_dataset as fix_dataset
    from fewbit.api.data import open_dataset as open_dataset
    from fewbit.api.quantize import quantize as quantize
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
    from fewbit.record.schema import Record as Record

_PUBLIC = {
    "fewbit.api.capture": ("capture",),
    "fewbit.api.data": ("check_dataset", "fix_dataset", "open_dataset"),
    "fewbit.api.quantize": ("quantize",),
    "fewbit.data.capture.wrapper": ("NumpyExportWrapper",),
    "fewbit.data.dataset": ("Dataset",),
    "fewbit.data.loading": (
        "DatasetConfig", "device_aware_data_loading", "generate_dataset_config", "get_custom_data_collator",
    ),
    "fewbit.data.types": ("DataReport", "Issue", "Location", "Sample"),
    "fewbit.errors": (
        "DataError", "FewbitError", "FewbitWarning", "MissingLibraryError", "ModelError", "ResourceError", "UsageError",
    ),
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
