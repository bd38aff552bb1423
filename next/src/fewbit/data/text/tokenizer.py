# SPDX-License-Identifier: Apache-2.0
"""Which tokenizer: a folder, the folder of a model file, a hub name, `bytes`, or one that is already loaded."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.errors import DataError, UsageError, plural, require

VOCABULARY_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "tekken.json",
)  # fmt: skip
BYTES = "bytes"
UNLIMITED = 10**9
"""`model_max_length` from here on means that the tokenizer does not know."""
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_tokenizer(name: Any) -> Any:
    """Load a tokenizer; no code that comes with it is run.

    Args:
        name: a tokenizer, a processor that has one, a folder, a model file in one, a hub name, or `bytes`.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    tokenizer = getattr(name, "tokenizer", name)
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return tokenizer
    if name == BYTES:
        return ByteTokenizer()
    if not isinstance(name, str | os.PathLike):
        name = getattr(name, "name_or_path", None) or type(name).__name__
    path = Path(name).expanduser()
    if path.exists():
        folder = tokenizer_folder(path)
        if folder is None:  # transformers would silently make a tokenizer with an empty vocabulary
            raise _missing(str(name), f"none of the files {', '.join(VOCABULARY_FILES[:4])} … is there")
        return _from_pretrained(str(folder), local_files_only=True)
    if not _HUB_NAME.fullmatch(str(name)):
        raise _missing(str(name), "there is no such folder")
    return _from_pretrained(str(name))


def tokenizer_folder(path: Path) -> Path | None:
    """The folder with the vocabulary: the path itself, or for a model file its folder or the one above it.

    `onnx/model.onnx` with the tokenizer one level up is a common layout.
    """
    folders = list(path.absolute().parents[:2]) if path.is_file() else [path]
    return next((folder for folder in folders for name in VOCABULARY_FILES if (folder / name).is_file()), None)


def pad_id(tokenizer: Any) -> int:
    """The token to pad with: padding (0 is an id like any other), else end of text, else 0.

    >>> pad_id(ByteTokenizer())
    257
    """
    ids = (getattr(tokenizer, "pad_token_id", None), getattr(tokenizer, "eos_token_id", None))
    return next((int(number) for number in ids if number is not None), 0)


def max_tokens(tokenizer: Any) -> int | None:
    """The longest sequence the tokenizer's model takes, if it says; values like 1e30 mean that it does not.

    >>> max_tokens(ByteTokenizer()) is None
    True
    """
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if isinstance(limit, int | float) and 0 < limit < UNLIMITED else None


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens a tokenizer puts before and after a text, known by encoding one with and without them."""
    framed, bare = (_ids(tokenizer, "a", add_special_tokens=add) for add in (True, False))
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return framed[:start], framed[start + len(bare) :]
    return [], []


def check_room(max_length: int, tokenizer: Any) -> None:
    """Make sure that a length leaves room for text.

    Raises:
        UsageError: special tokens fill it.
    """
    special = sum(map(len, special_tokens(tokenizer)))
    if max_length <= special:
        raise UsageError(
            f"{plural(max_length, 'token')} leave no room for text next to {plural(special, 'special token')}",
            code="max-length", param="max_length", expected=f"more than {special}", hint="{max_length=512}",
        )  # fmt: skip


def separator_tokens(tokenizer: Any) -> list[int]:
    """The tokens between the two texts of a pair, such as RoBERTa's `</s></s>`; a line break if there are none."""
    before, after = special_tokens(tokenizer)
    bare = _ids(tokenizer, "a", add_special_tokens=False)
    try:
        pair = list(tokenizer("a", "a", verbose=False)["input_ids"])
    except TypeError:  # takes one text only
        pair = []
    start, end = len(before) + len(bare), len(pair) - len(after) - len(bare)
    if start < end and pair[:start] == before + bare and pair[end : end + len(bare)] == bare:
        return pair[start:end]
    return _ids(tokenizer, "\n", add_special_tokens=False)


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Equal for tokenizers that give the same tokens: hash of vocabulary, rules, special tokens and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    names = ("bos_token", "eos_token", "pad_token", "chat_template", "model_max_length")
    inputs = [type(tokenizer).__name__, rules, *(repr(getattr(tokenizer, name, None)) for name in names)]
    return hashlib.sha256("\0".join(inputs).encode(errors="backslashreplace")).hexdigest()[:16]


def _ids(tokenizer: Any, text: str, **options: Any) -> list[int]:
    return list(tokenizer(text, verbose=False, **options)["input_ids"])


def _from_pretrained(name: str, **options: Any) -> Any:
    transformers = require("transformers", extra="hf", purpose="tokenizers")
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # damaged files, no network, no such name: the library raises anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _missing(name, lines[0][:200]) from error


def _missing(name: str, reason: str) -> DataError:
    return DataError(
        f"there is no tokenizer in {name!r}: {reason}", code="tokenizer", where=name,
        expected="a folder with tokenizer.json, a hub name, or 'bytes'",
        hint="tokenizer.save_pretrained(folder) writes one; or give samples with input_ids",
    )  # fmt: skip
