# SPDX-License-Identifier: Apache-2.0
"""Random changes that keep what a sample means, other ones in each epoch; only of what is trained on.

Of a text: letters, words, case; of the prompt, and of a text that has a label: never of what is to be learned. Of a
picture: a mirror, a window, a turn, another light; boxes, outlines and masks move along.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fewbit.data.augmenting import picture, text
from fewbit.data.augmenting.boxes import FORMATS
from fewbit.data.keys import Key, is_share
from fewbit.data.sample import Sample
from fewbit.data.source import Source
from fewbit.data.steps._base import Context
from fewbit.data.steps._held import hold
from fewbit.data.views import View
from fewbit.errors import UsageError

AFTER: tuple[str, ...] = ()
NEEDS: tuple[str, ...] = ()


def _share(name: str, default: float, doc: str) -> Key:
    return Key(name, default, "a number from 0 to 1", is_share, doc)


def _shade(name: str, default: int, doc: str) -> Key:
    return Key(name, default, "a whole number from 0 to 255", lambda v: type(v) is int and 0 <= v <= 255, doc)


KEYS = (
    _share("augment_characters", 0.02, "the share of letters with a slip of the keys"),
    _share("augment_words", 0.05, "the share of words left out"),
    _share("augment_case", 0.05, "the share of texts in another case"),
    Key(
        "augment_columns",
        None,
        "a list of columns, or none",
        lambda value: value is None or (isinstance(value, list | tuple) and all(isinstance(n, str) for n in value)),
        "the texts that may change; none: the prompt, what the user says in a chat, and a text with a label",
    ),
    _share("augment_flip", 0.5, "how often left and right change places"),
    _share("augment_flip_vertical", 0.0, "how often top and bottom do"),
    Key(
        "augment_crop",
        0.8,
        "a number above 0, up to 1",
        lambda v: is_share(v) and v > 0,
        "the least that stays of a side",
    ),
    Key(
        "augment_rotate",
        0.0,
        "a number of degrees from 0 to 180",
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 180,
        "the largest turn, either way",
    ),
    _share("augment_colour", 0.2, "how far brightness, contrast and saturation go from 1"),
    _share("augment_visible", 0.2, "an object of which no more than this share is still in the picture is left out"),
    _shade("augment_fill", 0, "the grey of what comes in from outside the picture"),
    _shade("augment_mask_fill", 255, "the class of it in a mask: usually one that is not learned"),
    Key("box_format", "cxcywh", f"one of {', '.join(FORMATS)}", lambda v: v in FORMATS, "how boxes are written"),
)


def apply(source: Source, context: Context) -> Source:
    """The samples, changed as they are read; as they are if they are not for training.

    Raises:
        UsageError: there is nothing in the samples that could change.
    """
    if context.split != "train":
        return source
    given = {key.name: context.options.get(key.name, key.default) for key in KEYS}
    return Augmented(hold(source, context.record), given, context.seed)


class Augmented(View):
    """Samples that differ from epoch to epoch: the same for the same seed, epoch and index, whoever reads them.

    Args:
        inner: read in any order.
        options: the keys of the step.
        seed: where chance starts.

    Attributes:
        epoch: which one it is; a loader says so (`_epochs.begin_epoch`).
    """

    def __init__(self, inner: Source, options: Mapping[str, Any], seed: int):
        super().__init__(inner)
        self._options, self._seed = options, seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        for index, sample in enumerate(self.inner):
            yield self._changed(sample, index)

    def get(self, index: int) -> Any:
        """The sample at an index, as it is in this epoch."""
        return self._changed(self.inner.get(index), index)

    def _changed(self, sample: Mapping[str, Any], index: int) -> Sample:
        rng = random.Random(f"{self._seed} {self.epoch} {index}")
        out = dict(sample)
        names = self._texts(sample)
        for name in names:
            out[name] = _text(out[name], self._options, rng)
        if "image" in sample:
            out = picture.augment(out, self._options, rng)
        elif not names:
            raise UsageError(
                f"augmentation finds nothing to change in a sample with {', '.join(sample)}",
                where="preprocessing_steps",
                expected="an image, a prompt, a chat, or a text with a label",
                try_="put 'augmentation' before 'tokenization', or name the texts: augment_columns=['text']",
            )
        return Sample(out, place=getattr(sample, "place", None) or self.inner.place(index))

    def _texts(self, sample: Mapping[str, Any]) -> list[str]:
        named = self._options["augment_columns"]
        if named is None:
            named = ["prompt", "messages", *(["text"] if "label" in sample else [])]
        return [name for name in named if name in sample]


def _text(value: Any, options: Mapping[str, Any], rng: random.Random) -> Any:
    """A text with slips, or a chat with slips in what the user says."""
    if isinstance(value, str):
        changes: tuple[tuple[Callable[[str, float, random.Random], str], str], ...] = (
            (text.without_words, "words"),
            (text.noisy, "characters"),
            (text.recased, "case"),
        )
        for change, key in changes:
            value = change(value, options[f"augment_{key}"], rng)
        return value
    if isinstance(value, list | tuple):
        return [
            {**turn, "content": _text(turn["content"], options, rng)}
            if isinstance(turn, Mapping) and turn.get("role") == "user" and isinstance(turn.get("content"), str)
            else turn
            for turn in value
        ]
    return value
