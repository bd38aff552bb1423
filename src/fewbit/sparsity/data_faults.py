# SPDX-License-Identifier: Apache-2.0
"""Data that is not for the model or the use case, told by its format and its first row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.text.tokenizer import has_tokenizer, home_of
from fewbit.errors import UsageError
from fewbit.sparsity.opening import Network
from fewbit.sparsity.said import Said
from fewbit.sparsity.use_cases._base import UseCase


def refuse_format(use_case: UseCase, format: str | None, data: Any, why: str) -> None:
    """Refuse files of a format that the use case does not read.

    Args:
        use_case: what the data is for.
        format: of the data; none if it is no files.
        data: what the user gave.
        why: it is this use case.
    """
    known = (*use_case.formats, "objects", None)
    if use_case.formats and format not in known:
        raise UsageError(
            f"{use_case.name} ({why}) does not read the format {format}",
            where=data if isinstance(data, str | Path) else type(data).__name__,
            expected=f"{', '.join(use_case.formats)}, or a loader",
            try_="another use case (`fewbit list use_cases`), or one of your own as 'file.py:function'",
        )


def refuse_texts(network: Network, use_case: UseCase, row: Any, said: Said, why: str) -> None:
    """Refuse texts where nothing makes numbers of them.

    Args:
        network: the model.
        use_case: what the data is for.
        row: the first of the data.
        said: further options.
        why: it is this use case.
    """
    if registry.is_reference(use_case.name):  # which makes a row the model's input itself
        return
    if use_case.kind != "texts" or not _is_text(row) or "tokenizer" in said.data:
        return
    home = network.home or network.model
    place = home_of(home)
    if hasattr(getattr(home, "tokenizer", home), "convert_ids_to_tokens") or (place and has_tokenizer(place)):
        return
    raise UsageError(
        f"the data is texts, for {use_case.name} ({why}), and the model has no tokenizer",
        where=network.home or type(network.model).__name__,
        expected="a Hugging Face folder with tokenizer.json beside config.json",
        try_="tokenizer=FOLDER (--option tokenizer=FOLDER), rows with input_ids, or a use case of your own, "
        "'file.py:function', that makes a row the model's input",
    )


def _is_text(row: Any) -> bool:
    values = list(row.values()) if isinstance(row, Mapping) else [row]
    tokens = isinstance(row, Mapping) and "input_ids" in row
    return not tokens and any(isinstance(value, str) or _are_words(value) for value in values)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str | Mapping)
