# SPDX-License-Identifier: Apache-2.0
"""A module from a path: `FILE.py:FN`, or a Hugging Face folder as transformers loads it, quantized or not."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

from fewbit.backends.torch.factory import build
from fewbit.backends.torch.huggingface import inspect_folder
from fewbit.data.user_code import parse_reference
from fewbit.errors import ModelError, require


def load_module(source: str | Path) -> Any:
    """The module of a path, in evaluation mode, on the CPU.

    Raises:
        ModelError: transformers cannot load the folder.
    """
    if parse_reference(str(source)) is not None:
        return build(str(source))
    import torch

    transformers = require("transformers", extra="hf", purpose="Hugging Face models")
    folder = Path(source)
    info = inspect_folder(folder)
    name = info.kind if hasattr(transformers, info.kind) else "AutoModel"
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # bars of several libraries
            warnings.simplefilter("ignore")
            module = getattr(transformers, name).from_pretrained(folder, dtype="float32", local_files_only=True).eval()
            if info.quantized and info.task == "text-generation":  # compressed-tensors unpacks in the first call
                with torch.no_grad():
                    module(input_ids=torch.zeros(1, 1, dtype=torch.int64))
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"transformers cannot load the model: {text[:300]}", code="model-load", where=str(folder),
            expected="a folder that from_pretrained takes", hint="install what its message names",
        ) from error  # fmt: skip
    finally:
        transformers.logging.set_verbosity(level)
    return module
