# SPDX-License-Identifier: Apache-2.0
"""Hub names: `org/name` and `hf:org/name@revision` become the folder in huggingface_hub's cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fewbit.errors import ModelError, require

_NAME = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "*.model"]
"""Weights without pickles, configuration, tokenizer; code is never fetched."""


def local_model(source: Any) -> Any:
    """The folder of a model on the hub, downloaded unless it is in the cache; anything else as it is.

    A local path of the same name wins.

    Raises:
        ModelError: the hub does not answer or does not have it.
    """
    if not isinstance(source, str) or Path(source).exists():
        return source
    match = _NAME.fullmatch(source)
    if match is None or Path(source).parent.is_dir() or Path(source).suffix in (".onnx", ".xml", ".pt2", ".tflite"):
        return source
    hub = require("huggingface_hub", extra="hf", purpose="models of the hub")
    name, revision = match.groups()
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except Exception as error:  # the library has many kinds, all of them say the same to a user
        raise ModelError(
            f"the model {source!r} is neither a local path nor to be had from the hub", code="model-hub", where=source,
            expected="a folder, or a name such as HuggingFaceTB/SmolLM2-135M that huggingface_hub can download",
            hint=f"download it where there is a connection: hf download {name}",
        ) from error  # fmt: skip
