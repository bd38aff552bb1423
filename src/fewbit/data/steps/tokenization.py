# SPDX-License-Identifier: Apache-2.0
"""Texts become tokens: in batches, kept on disk by what they were made from, chats by the tokenizer's template.

A sample has `input_ids`, `labels` (everything is learned; `masking` says what is not) and `parts`. One with a label has
it as `labels`; one of words and tags has the tag of each word at its first token; one of question and context has
`start_positions` and `end_positions`. What is kept lies in the user's cache, never beside the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data import cache
from fewbit.data.keys import Key, is_flag, is_text
from fewbit.data.preparing import fingerprints
from fewbit.data.preparing.stepped import LeftOut, Stepped
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source, known_length
from fewbit.data.steps._base import Context
from fewbit.data.steps._epochs import ByEpoch
from fewbit.data.text import token_table
from fewbit.data.text.sample_encoder import SampleEncoder, with_labels
from fewbit.data.views import View
from fewbit.errors import DataError

AFTER: tuple[str, ...] = ("augmentation",)
NEEDS: tuple[str, ...] = ()
PARTS = True
KEYS = (
    Key("add_eos", True, "true or false", is_flag, "whether a text that is learned ends with the tokenizer's end"),
    Key("chat_template", None, "a template", is_text, "instead of the tokenizer's own"),
    Key("cache_tokens", True, "true or false", is_flag, "whether tokens are kept on disk"),
)

_BATCH = 1000


def apply(source: Source, context: Context) -> Source:
    """The tokens of every sample."""
    options = context.options
    encoder = SampleEncoder(context.tokenizer, ends=options["add_eos"], template=options["chat_template"])
    if not options["cache_tokens"] or known_length_unread(source) or differs(source):
        return Stepped(source, encoder, "tokenization", forgives=True)
    return Tokenized(source, encoder, context)


class Tokenized(View):
    """Tokens of samples that are the same every time they are read.

    They are made when the first is asked for, and kept.
    """

    def __init__(self, inner: Source, encoder: SampleEncoder, context: Context):
        super().__init__(inner)
        self._encoder, self._context = encoder, context
        self._table: token_table.TokenTable | None = None

    @property
    def random_access(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.table())

    def get(self, index: int) -> Sample:
        """The tokens of one sample."""
        sample = self.table().get(index)
        with_labels(sample)
        return sample

    def place(self, index: int) -> Place:
        """Where it comes from."""
        return self.table().place(index)

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sample."""
        return self.table().lengths()

    def table(self) -> token_table.TokenTable:
        """All tokens, from the disk if they are there."""
        if self._table is None:
            kept = cache.entry_of("tokens-1", self._fingerprint())
            if (kept / "about.json").exists():
                self._table = token_table.TokenTable(kept)
                self._remind(self._table.notes)
            else:
                self._table = token_table.write(kept, self._encoded(), self.record.lines)
            if not len(self._table):
                raise self._nothing()
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        self.table()  # made here once, and not again in every process
        return {**self.__dict__, "_encoder": None, "_context": None, "inner": Source()}

    def _fingerprint(self) -> str:
        context = self._context
        names = ("tokenizer", *(key.name for key in KEYS))
        how = fingerprints.of_options({name: context.options[name] for name in names if name != "cache_tokens"})
        code = [fingerprints.of_code(each) for each in (SampleEncoder, token_table)]
        before = context.fingerprint
        if before is None:
            before = fingerprints.combine([fingerprints.combine(dict(row)) for row in self.inner])
        return fingerprints.combine(before, how, code)

    def _encoded(self) -> Iterator[Sample]:
        left = LeftOut(self.record, "tokenization")
        number = 0
        for samples in _batches(self.inner):
            for sample, made in zip(samples, self._encoder.many(samples)):
                place = getattr(sample, "place", None) or self.inner.place(number)
                if isinstance(made, DataError):
                    left.count(number, place, made.what)
                else:
                    yield Sample(made, place=place)
                number += 1

    def _remind(self, notes: list[dict[str, Any]]) -> None:
        """Say again what was left out when the tokens were made."""
        told = [line for line in notes if line not in self.record.lines]
        self.record.lines += [line for line in told if line["what"] == "left-out"]

    def _nothing(self) -> DataError:
        line = next((line for line in self.record.lines if line["what"] == "left-out"), None)
        return DataError(
            "nothing is left to tokenize" + (f": {line['reason']}" if line else ""),
            code="no-samples",
            where=line["where"] if line else None,
            expected="at least one sample with a text",
        )


def known_length_unread(source: Source) -> bool:
    """Whether a source is a stream, which may have no end."""
    beneath: Any = source
    while isinstance(beneath, View):
        beneath = beneath.inner
    return not beneath.random_access and known_length(beneath) is None


def differs(source: Source) -> bool:
    """Whether the samples are other ones in another epoch."""
    beneath: Iterable[Any] = (getattr(source, "inner", None), *getattr(source, "parts", ()))
    return isinstance(source, ByEpoch) or any(differs(part) for part in beneath if isinstance(part, Source))


def _batches(source: Source) -> Iterator[list[Any]]:
    rows = iter(source)
    while batch := list(islice(rows, _BATCH)):
        yield batch
