# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that a configuration names: a folder, a name on the hub, `bytes`, or one that is open already."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.data.text.tokenizer import has_tokenizer, home_of, open_tokenizer
from fewbit.errors import DataError, UsageError, require

BYTES = "bytes"
_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")


class NamedTokenizer:
    """Opens a tokenizer when it is first called, and gives the same one from then on.

    Args:
        named: what the configuration says; nothing is `bytes`.
    """

    def __init__(self, named: Any = None):
        self.named = BYTES if named is None else named
        self._open: Any = None

    def __call__(self) -> Any:
        """The tokenizer.

        Raises:
            DataError: it does not open.
        """
        if self._open is None:
            self._open = _opened(self.named)
        return self._open

    def __getstate__(self) -> dict[str, Any]:
        return {"named": self.named, "_open": None}


def _opened(named: Any) -> Any:
    if named == BYTES:
        return ByteTokenizer()
    home = None if hasattr(named, "convert_ids_to_tokens") else home_of(named)
    if home is None or has_tokenizer(home) or home.exists() or not _HUB.fullmatch(str(named)):
        return open_tokenizer(named)
    transformers = require("transformers", extra="hf", purpose="tokenizing the rows")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(named), trust_remote_code=False)
    except Exception as error:  # no network, no such name, a damaged file
        reason = (str(error) or type(error).__name__).splitlines()[0][:160]
        raise DataError(
            f"there is no tokenizer {str(named)!r} here, nor to be had from the hub: {reason}",
            code="tokenizer",
            where="custom_config['tokenizer']",
            expected="a folder with tokenizer.json, a name on the hub, or 'bytes'",
        ) from error


def fault_of(named: Any) -> str | None:
    """What is wrong with a tokenizer's name, as far as it can be told without opening it."""
    if named is None or hasattr(named, "convert_ids_to_tokens") or hasattr(named, "tokenizer"):
        return None
    if not isinstance(named, str | Path) or not str(named):
        return f"tokenizer={named!r}: expected a folder, a name on the hub, 'bytes', or a tokenizer"
    place = Path(named).expanduser()
    if place.exists() and not has_tokenizer(home_of(named) or place):
        return f"tokenizer={str(named)!r}: no tokenizer.json or other vocabulary is there"
    if not place.exists() and named != BYTES and not _HUB.fullmatch(str(named)):
        return f"tokenizer={str(named)!r}: there is no such folder"
    return None


def pad_id_of(tokenizer: Any) -> int:
    """What fills up: the tokenizer's padding, also where its number is 0, else its end of text, else 0.

    >>> pad_id_of(ByteTokenizer())
    257
    """
    for name in ("pad_token_id", "eos_token_id"):
        number = getattr(tokenizer, name, None)
        if number is not None:
            return int(number)
    return 0


def longest_of(tokenizer: Any) -> int | None:
    """The most tokens its model takes, if it says."""
    longest = getattr(tokenizer, "model_max_length", None)
    if longest is not None and not isinstance(longest, int | float):
        raise UsageError(f"model_max_length is {longest!r}", where="tokenizer", expected="a number")
    return int(longest) if longest is not None and longest < 10**9 else None
