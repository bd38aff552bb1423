# SPDX-License-Identifier: Apache-2.0
"""Digests of content that are the same in every process: of files, options, code and tokenizers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fewbit.data import cache, walk
from fewbit.data.kinds import comes_from
from fewbit.registry import is_reference

_MANY = 1000
"""Files above which the sizes and times of a folder's files stand for their content."""


def combine(*parts: Any) -> str:
    """One digest of plain values.

    >>> combine({"b": 1, "a": (2,)}) == combine({"a": [2], "b": 1}) != combine({"a": [2], "b": 2})
    True
    """
    try:
        content = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS, default=_plain)
    except TypeError:  # numbers beyond 64 bits, halves of characters, keys that are no texts
        content = repr(parts).encode(errors="replace")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def of_place(place: Any) -> str | None:
    """Of a file, of all files in a folder, of a list, of a Hugging Face dataset; none if only reading would tell."""
    if isinstance(place, list):
        return combine(place)
    if isinstance(place, Path):
        if place.is_file():
            return cache.digest(place)
        return _of_folder(place) if place.is_dir() else None
    if comes_from(place, "datasets.arrow_dataset.Dataset"):
        return combine(place._fingerprint, len(place))
    if comes_from(place, "datasets.dataset_dict.DatasetDict"):
        return combine({name: of_place(part) for name, part in place.items()})
    return None


def of_code(member: Any) -> str:
    """Of the file that a module or a function is written in."""
    module = member if hasattr(member, "__file__") else sys.modules.get(getattr(member, "__module__", ""))
    file = getattr(module, "__file__", None)
    name = getattr(member, "__qualname__", "")
    return combine(name, cache.digest(Path(file))) if file and Path(file).is_file() else combine(repr(member))


def of_reference(text: str) -> str:
    """Of the user's file that `"file.py:function"` names."""
    file, _, name = text.rpartition(":")
    path = Path(file).expanduser()
    return combine(name, cache.digest(path) if path.is_file() else None)


def of_tokenizer(tokenizer: Any) -> str:
    """Of everything that decides which tokens a text becomes."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if hasattr(backend, "to_str") else sorted(tokenizer.get_vocab().items())
    special = {name: getattr(tokenizer, name, None) for name in ("bos_token", "eos_token", "chat_template")}
    adds = [getattr(tokenizer, name, None) for name in ("add_bos_token", "add_eos_token")]
    return combine(type(tokenizer).__name__, vocabulary, special, adds)


def of_options(options: Mapping[str, Any]) -> str:
    """Of options: content where a file, code or a tokenizer is named, else what they say."""
    return combine({name: _of_option(name, value) for name, value in options.items()})


def _of_option(name: str, value: Any) -> Any:
    if name == "tokenizer" and value is not None:
        return _of_named_tokenizer(value)
    if name == "path" and value is not None:
        return of_place(Path(value).expanduser()) or value
    if is_reference(value):
        return of_reference(value)
    if hasattr(value, "fingerprint"):
        return value.fingerprint
    return of_code(value) if callable(value) else value


def _of_named_tokenizer(value: Any) -> Any:
    if hasattr(value, "convert_ids_to_tokens"):
        return of_tokenizer(value)
    place = Path(str(value)).expanduser()
    if not place.is_dir():
        return str(value)
    files = sorted(path for path in place.iterdir() if path.suffix in (".json", ".model", ".txt", ".jinja"))
    return combine([(path.name, cache.digest(path)) for path in files if "index" not in path.name])


def _of_folder(folder: Path) -> str:
    entries = sorted(walk.walk(folder), key=lambda entry: entry.name)
    if len(entries) <= _MANY:
        return combine([(entry.name, cache.digest(Path(entry.path))) for entry in entries])
    stats = ((entry.name, Path(entry.path).stat()) for entry in entries)
    return combine([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return [str(array.dtype), list(array.shape), hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()]
    return str(value)
