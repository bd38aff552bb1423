# SPDX-License-Identifier: Apache-2.0
"""A collator for rows with answers: where a batch cannot be made because a row has none, that is what is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.data.collate import Collator
from fewbit.errors import DataError
from fewbit.tuning.unfit_samples import without_label


@dataclass(frozen=True)
class LabelsThere(Collator):
    """As `Collator`, which blames whichever sample is unlike the first one.

    >>> LabelsThere()([{"label": None}, {"label": 1}])
    Traceback (most recent call last):
    fewbit.errors.DataError: a label is None
      where:    sample 0 of the batch
      expected: a label in every sample that is learned from
      try:      leave such rows out: [row for row in rows if row['label'] is not None]
    """

    def __call__(self, samples: Sequence[Mapping[str, Any]], indices: Sequence[int] | None = None) -> dict[str, Any]:
        """The batch of some samples."""
        try:
            return super().__call__(samples, indices)
        except DataError as error:
            labels = [each.get("labels", each.get("label", ())) for each in samples if isinstance(each, Mapping)]
            found = without_label({"labels": labels})
            if found is None or found.of != len(samples):
                raise
            if indices is None:
                raise found.at(f"sample {found.rows[0]} of the batch") from error
            found.rows = [indices[row] for row in found.rows]
            raise found from error  # for whoever knows where these are from
