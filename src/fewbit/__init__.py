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
    from fewbit.data.dataset import Dataset, open_dataset
    from fewbit.data.export_wrapper import NumpyExportWrapper
    from fewbit.data.findings import DataReport, Finding
    from fewbit.data.fixing import fix_dataset
    from fewbit.data.sample import Sample
    from fewbit.errors import DataError, FewbitError, MissingLibrary, UsageError
    from fewbit.record import Record


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
