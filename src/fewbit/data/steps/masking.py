# SPDX-License-Identifier: Apache-2.0
"""What is learned of a sample: the answers and their ends, not the prompts; on request not what a calculator wrote.

Whose a token is was told by the characters it stands for, when the text became tokens. Of a chat the assistant's turns
are learned. What has no prompt is learned whole, and what has labels of its own keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, is_flag
from fewbit.data.sample import Sample
from fewbit.data.steps._base import ASKED, CALCULATED, FRAME, NOTHING, Context, SampleStep

AFTER = ("tokenization",)
NEEDS = ("tokenization",)
DROPS = False
PARTS = True
KEYS = (
    Key("mask_prompt", True, "true or false", is_flag, "whether prompts and the turns of others are not learned"),
    Key("mask_calculator", False, "true or false", is_flag, "whether what follows = in <<48/2=24>> is not learned"),
)


def make(context: Context) -> SampleStep:
    """Sets labels to -100 where nothing is learned."""
    masked = [FRAME]
    masked += [ASKED] if context.options["mask_prompt"] else []
    masked += [CALCULATED] if context.options["mask_calculator"] else []
    return Mask(np.isin(range(4), masked))


def lengths(found: Any, context: Context) -> Any:
    """How long samples are afterwards: as long as before."""
    return found


@dataclass(frozen=True)
class Mask:
    """Labels that are -100 in some parts of a sample: for each number of a part, whether it is hidden."""

    hides: NDArray[np.bool_]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The same sample with other labels."""
        parts, labels = sample.get("parts"), np.asarray(sample.get("labels"))
        if parts is None or labels.ndim != 1 or not (labels == sample["input_ids"]).all():
            return sample  # a class, tags, or labels that came with the tokens
        made = np.where(self.hides[parts], NOTHING, labels)
        return Sample({**sample, "labels": made}, place=getattr(sample, "place", None))
