# SPDX-License-Identifier: Apache-2.0
"""`FILE.py:FN`: a function of the user that builds a module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fewbit.backends._sidecar import read_sidecar_files
from fewbit.data.inputs.modules import is_module, module_info
from fewbit.data.user_code import call, load_function
from fewbit.errors import ModelError, require
from fewbit.model_info import ModelInfo


def inspect_factory(reference: str) -> ModelInfo:
    """Build the module and read what it takes."""
    require("torch", extra="torch", purpose="PyTorch models")
    info = module_info(build(reference))
    sidecar = read_sidecar_files(Path(reference.rpartition(":")[0]))
    return replace(
        info,
        source=reference,
        labels=sidecar.labels or info.labels,
        preprocessing=sidecar.preprocessing,
        preprocessing_source=sidecar.preprocessing_source,
        tokenizer=sidecar.tokenizer,
    )


def build(reference: str) -> Any:
    """Call a function of a Python file without arguments and return its module; a module of the file is taken as it is.

    Raises:
        UsageError: there is no such file or function.
        UserCodeError: it fails; the user's own line is named.
        ModelError: it returns something else.
    """
    factory = load_function(reference, param="model")
    if is_module(factory):
        return factory
    model = call(factory, {}, param="model") if callable(factory) else factory
    if not is_module(model):
        raise ModelError(
            f"{reference} gives a {type(model).__name__}", code="factory-result", where=reference,
            expected="a function without arguments that returns a torch.nn.Module", hint="return the module",
        )  # fmt: skip
    return model
