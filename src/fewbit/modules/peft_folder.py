# SPDX-License-Identifier: Apache-2.0
"""Folders of LoRA adapters in peft's layout: what their base model is, and who reads them."""

from __future__ import annotations

from pathlib import Path

import orjson

from fewbit.errors import UsageError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def how_to_load(folder: Path) -> str:
    """What to call to load the adapters in a folder, for messages and records."""
    base = _base(folder)
    found = repr(base) if base else "the model that was given"
    return f"adapters alone, to be loaded onto {found}: peft.PeftModel.from_pretrained(base_model, {str(folder)!r})"


def refuse_adapters(folder: Path) -> None:
    """Refuse a folder that holds adapters and no model.

    Raises:
        UsageError: there is an `adapter_config.json`, and neither weights of a model nor an export.
    """
    if (folder / CONFIG).is_file() and not (folder / "config.json").is_file():
        raise UsageError(
            f"the folder {str(folder)!r} holds LoRA adapters in peft's layout, not a model",
            where=folder,
            expected=f"a model; the adapters' base model is {_base(folder) or 'not named'!r}",
            try_=f"peft.PeftModel.from_pretrained(base_model, {str(folder)!r}).merge_and_unload(), or finetune with "
            "merge=True",
        )


def _base(folder: Path) -> str | None:
    try:
        content = orjson.loads((folder / CONFIG).read_bytes())
    except orjson.JSONDecodeError:
        return None
    found = content.get("base_model_name_or_path") if isinstance(content, dict) else None
    return str(found) if found else None
