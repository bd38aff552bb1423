# SPDX-License-Identifier: Apache-2.0
"""What lies beside a Hugging Face model and belongs to it: the files of its tokenizer and processor."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fewbit.modules.huggingface import is_pretrained

# Data only: code that a tokenizer brings along is left where it is.
_FILES = (
    "tokenizer*.json", "tokenizer.model*", "*.model", "*.tiktoken", "tekken.json", "bpe.codes", "normalizer.json",
    "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
    "chat_template*.json", "chat_template*.jinja", "additional_chat_templates/*.jinja",
    "*preprocessor_config.json", "processor_config.json",
)  # fmt: skip


def copy_companions(model: Any, folder: Path) -> list[str]:
    """Copy the files of a model's tokenizer and processor, as they are, from the folder it was loaded from.

    Args:
        model: any model; only a Hugging Face model knows where it came from.
        folder: where to put them; a file that is there already is kept.

    Returns:
        Their names.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile stands before
    home = _home(model)
    if home is None:
        return []
    names = sorted({path.relative_to(home) for pattern in _FILES for path in home.glob(pattern) if path.is_file()})
    names = [name for name in names if not (folder / name).exists()]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(home / name, folder / name)
    return [name.as_posix() for name in names]


def _home(model: Any) -> Path | None:
    """The folder a Hugging Face model was loaded from, where it was one."""
    if not is_pretrained(model) or not model.name_or_path:
        return None
    home = Path(model.name_or_path)
    return home if home.is_dir() else None
