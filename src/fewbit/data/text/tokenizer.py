# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that belongs to a model: the one given, the one in its folder, the one beside its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fewbit.errors import DataError, require

_VOCABULARIES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip


def open_tokenizer(model: Any) -> Any:
    """The tokenizer of a model; no code of its own is run.

    Args:
        model: a tokenizer, a processor that has one, a folder, a file in one, or a Hugging Face model that knows where
            it came from.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    inner = getattr(model, "tokenizer", model)
    if hasattr(inner, "convert_ids_to_tokens"):
        return inner
    home = home_of(model)
    if home is None:
        raise _none(type(model).__name__, "it does not say which folder it came from")
    if not has_tokenizer(home):  # transformers would make one without a vocabulary
        raise _none(home, "none of its files is here")
    transformers = require("transformers", extra="hf", purpose="tokenizing the rows")
    try:
        return transformers.AutoTokenizer.from_pretrained(home, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a damaged tokenizer makes the library raise
        raise _none(home, (str(error) or type(error).__name__).splitlines()[0][:200]) from error


def home_of(model: Any) -> Path | None:
    """The folder of a model with its tokenizer, beside a file or one above: `onnx/model.onnx` is a common layout."""
    named = model if isinstance(model, str | os.PathLike) else getattr(model, "name_or_path", None)
    if not named:
        return None
    place = Path(named).expanduser()
    if not place.is_file():
        return place
    folders = place.absolute().parents[:2]
    return next((folder for folder in folders if has_tokenizer(folder)), folders[0])


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer's vocabulary."""
    return any((folder / name).is_file() for name in _VOCABULARIES)


def frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    framed, plain = (list(tokenizer("a", add_special_tokens=add)["input_ids"]) for add in (True, False))
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return framed[:start], framed[start + len(plain) :]
    return [], []


def _none(where: object, why: str) -> DataError:
    return DataError(
        f"the model has no tokenizer that opens: {why}",
        code="tokenizer",
        where=where,
        expected="a folder with tokenizer.json beside config.json",
        try_="tokenizer.save_pretrained(folder) and the model by its folder, rows with input_ids, or a transform "
        "(--transform file.py:function)",
    )
