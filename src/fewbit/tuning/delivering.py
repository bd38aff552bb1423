# SPDX-License-Identifier: Apache-2.0
"""The trained model in its folder: as Hugging Face writes it, or in fewbit's own format."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from torch import nn

from fewbit.engine.companions import copy_companions
from fewbit.engine.delivering import export
from fewbit.engine.unknown_tensors import copy_unknown
from fewbit.exporters._unknown_tensors import unknown_tensors
from fewbit.modules.huggingface import is_pretrained, quiet
from fewbit.modules.quantized import is_quantized
from fewbit.tuning.adapter_files import save_adapters
from fewbit.tuning.adapters import adapted

_STAGED = ".model"


def deliver(
    model: nn.Module,
    folder: Path,
    *,
    tokenizer: Any = None,
    factory: str | None = None,
    source: str | None = None,
) -> str:
    """Write a model into the folder of its run, whose other files stay.

    Args:
        model: what was trained.
        folder: of the run.
        tokenizer: to be saved beside it; if none, the files that lie beside what it was loaded from are copied.
        factory: `"file.py:function"` that builds the model, which fewbit's own format names.
        source: the path the model was opened from, which adapters that are not merged refer to as their base.

    Returns:
        What it was written as: `huggingface`, `safetensors`, or `peft` for adapters that are not merged.
    """
    staged = folder / _STAGED
    shutil.rmtree(staged, ignore_errors=True)
    own = not is_pretrained(model) or any(map(is_quantized, model.modules()))
    apart = any(adapted(model))
    if apart:
        staged.mkdir(parents=True)
        save_adapters(model, staged, source=source)
        _save_tokenizer(model, staged, tokenizer)
    elif own:
        more = {"tokenizer": tokenizer} if tokenizer is not None else {}
        export(model, staged, format="safetensors", factory=factory, **more)
    else:
        saved: Any = model
        with quiet(sys.modules["transformers"]):
            saved.save_pretrained(staged)
        _save_tokenizer(model, staged, tokenizer)
        copy_unknown(staged, unknown_tensors(model), "huggingface", getattr(model, "fewbit_record", None))
    for old in (*folder.glob("model*.safetensors*"), *folder.glob("fewbit*.safetensors")):
        old.unlink()  # of an earlier result, which may have been in other pieces
    for path in sorted(staged.rglob("*")):
        if path.is_file():
            target = folder / path.relative_to(staged)
            target.parent.mkdir(exist_ok=True)
            path.replace(target)
    shutil.rmtree(staged)
    return "peft" if apart else "safetensors" if own else "huggingface"


def _save_tokenizer(model: nn.Module, folder: Path, tokenizer: Any) -> None:
    if tokenizer is not None and hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    copy_companions(model, folder)
