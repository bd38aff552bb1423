# SPDX-License-Identifier: Apache-2.0
"""Reviews of films, each for or against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.presets._base import text_in
from fewbit.errors import DataError

HUB = "stanfordnlp/imdb"
SPLITS = {"train": "train", "validation": "test"}
TASK = "sequence_classification"
STEPS = ("tokenization", "truncation", "padding")
KEYS = ()
COLUMNS = ("text", "label")
CLASSES = ("negative", "positive")

_LABELS = {"0": 0, "neg": 0, "negative": 0, "1": 1, "pos": 1, "positive": 1}


def example(row: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A review and the number of its class.

    >>> example({"text": "Dull.", "label": "neg"}, {})
    {'text': 'Dull.', 'label': 0}
    """
    label = _LABELS.get(str(row.get("label")).strip().lower())
    if label is None:  # -1 is what the part without labels says
        raise DataError(f"the label is {row.get('label')!r}", code="bad-row", expected=", ".join(_LABELS))
    return {"text": text_in(row, "text"), "label": label}
