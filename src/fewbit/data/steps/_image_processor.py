# SPDX-License-Identifier: Apache-2.0
"""The image processor in a model's folder: whether there is one, and opening it without any code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from fewbit.errors import DataError, require

_OWN, _SHARED = "preprocessor_config.json", "processor_config.json"


def has_image_processor(folder: Path) -> bool:
    """Whether a folder says how pictures are made inputs; of a model for sounds the same file says something else."""
    if "image_processor" in _read(folder / _SHARED):
        return True
    said = _read(folder / _OWN)
    return bool({"image_processor_type", "image_mean", "do_resize"} & said.keys())


def open_image_processor(folder: Path) -> Any:
    """The image processor of a folder.

    Args:
        folder: of the model.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    transformers = require("transformers", extra="hf", purpose="preparing pictures as the model's own processor does")
    why = f"neither {_OWN} nor {_SHARED} is there"
    try:
        if has_image_processor(folder):
            # Pillow's arithmetic: the same numbers whether torchvision is installed or not.
            kind = transformers.AutoImageProcessor
            return kind.from_pretrained(folder, backend="pil", local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a damaged file, or a library that is not there, makes it raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    raise DataError(
        f"the model has no image processor that opens: {why}",
        code="processor",
        where=folder,
        expected=f"{_OWN} beside config.json, as processor.save_pretrained(folder) writes it",
        try_="the step 'rescaling' with image_size, image_mean and image_std, or your own 'file.py:function'",
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):  # whoever opens it tells what is wrong
        return {}
    return found if isinstance(found, dict) else {}
