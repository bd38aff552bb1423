# SPDX-License-Identifier: Apache-2.0
"""Samples of text as tokens, each token with whose it is, told by the characters it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.text import parts, spans
from fewbit.data.text.parts import ANSWERED, ASKED, CALCULATED, FRAME, NOTHING
from fewbit.data.text.tokenizer import frame
from fewbit.errors import DataError

Encoded = dict[str, Any] | DataError
"""What a sample became, or why it became nothing."""


class SampleEncoder:
    """Turns samples into tokens.

    Args:
        tokenizer: opens the tokenizer.
        ends: whether a text that is learned ends with the tokenizer's end.
        template: a chat template instead of the tokenizer's.
    """

    def __init__(self, tokenizer: Callable[[], Any], *, ends: bool = True, template: str | None = None):
        self._open, self._ends, self._template = tokenizer, ends, template

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """One sample.

        Raises:
            DataError: it says nothing that could be learned.
        """
        found = self.many([sample])[0]
        if isinstance(found, DataError):
            raise found
        return with_labels(found)

    def many(self, samples: Sequence[Mapping[str, Any]]) -> list[Encoded]:
        """Several samples, their texts tokenized together; `input_ids`, `parts`, and what else their kind has."""
        read = [self._read(sample) for sample in samples]
        tokens = iter(self._tokens([each for each in read if isinstance(each, spans.Spans)]))
        return [
            self._kind(sample, each, *next(tokens)) if isinstance(each, spans.Spans) else each
            for sample, each in zip(samples, read)
        ]

    @cached_property
    def _tokenizer(self) -> Any:
        return self._open()

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        return frame(self._tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        return {"_open": self._open, "_ends": self._ends, "_template": self._template}

    def _read(self, sample: Mapping[str, Any]) -> spans.Spans | Encoded:
        try:
            if "input_ids" in sample:
                return _as_it_is(sample)
            if "question" in sample and "context" in sample:
                return self._in_context(sample)
            if "messages" in sample:
                made = spans.of_chat(sample["messages"], self._tokenizer, self._template)
            elif "answer" in sample:
                made = spans.of_answer(sample["prompt"], sample["answer"])
            elif "words" in sample:
                made = spans.Spans(" ".join(sample["words"]))
            elif isinstance(sample.get("text"), str):
                made = spans.Spans(sample["text"])
            else:
                raise DataError(f"no text: it has {', '.join(sample) or 'nothing'}", code="no-text")
        except DataError as error:
            return error
        if not made.text.strip() or made.answers == ():
            return DataError("it is empty" if not made.text.strip() else "nothing in it is an answer", code="no-text")
        return made

    def _tokens(self, texts: list[spans.Spans]) -> list[tuple[list[int], Any]]:
        """The tokens of each text with the characters they stand for, where the tokenizer can say."""
        if not texts:
            return []
        if not getattr(self._tokenizer, "is_fast", False):
            return [self._in_pieces(each) for each in texts]
        how = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        unused = {"return_attention_mask": False, "return_token_type_ids": False}
        found = self._tokenizer([each.text for each in texts], **how, **unused)
        return list(zip(found["input_ids"], found["offset_mapping"]))

    def _in_pieces(self, text: spans.Spans) -> tuple[list[int], Any]:
        """The same by a tokenizer that does not know characters: cut where an answer starts or ends, then joined."""
        cuts = sorted({0, len(text.text), *(at for span in text.answers or () for at in span)})
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for start, end in pairwise(cuts):
            made = list(self._tokenizer(text.text[start:end], add_special_tokens=False, verbose=False)["input_ids"])
            ids += made
            offsets += [(start, end)] * len(made)
        return ids, offsets

    def _kind(self, sample: Mapping[str, Any], text: spans.Spans, ids: list[int], pairs: Any) -> Encoded:
        if not ids:
            return DataError("its text has no token", code="no-text")
        if "words" in sample:
            return self._tagged(sample, ids, parts.as_offsets(pairs))
        if "label" in sample:
            return self._framed(np.array(ids, np.int64), labels=int(sample["label"]))
        whose = np.full(len(ids), ANSWERED, np.uint8)
        if text.answers is not None:
            offsets = parts.as_offsets(pairs)
            whose[~parts.touching(offsets, text.answers)] = ASKED
            if text.calculated:
                whose[parts.inside(offsets, text.calculated) & (whose == ANSWERED)] = CALCULATED
        return self._learned(ids, whose, text)

    def _learned(self, ids: list[int], whose: NDArray[np.uint8], text: spans.Spans) -> dict[str, Any]:
        before, after = self._frame
        end = getattr(self._tokenizer, "eos_token_id", None)
        after = (after or ([] if end is None else [int(end)])) if self._ends and text.ended else []
        if not text.framed and before and ids[: len(before)] == before:  # the template brought it
            whose[: len(before)] = FRAME
            before = []
        elif not text.framed:
            before = []
        whose = np.concatenate([_all(before, FRAME), whose, _all(after, ANSWERED)])
        return {"input_ids": np.array([*before, *ids, *after], np.int64), "parts": whose}

    def _framed(self, ids: NDArray[np.int64], **more: Any) -> dict[str, Any]:
        """A text that is read and not written, between the tokenizer's own start and end."""
        before, after = self._frame
        whose = np.concatenate([_all(before, FRAME), _all(ids, ASKED), _all(after, FRAME)])
        return {"input_ids": np.concatenate([before, ids, after]).astype(np.int64), "parts": whose, **more}

    def _tagged(self, sample: Mapping[str, Any], ids: list[int], offsets: parts.Offsets) -> dict[str, Any]:
        """The first token of each word has its tag."""
        starts = np.cumsum([0, *(len(word) + 1 for word in sample["words"])])
        word = np.searchsorted(starts, offsets[:, 1] - 1, side="right") - 1
        first = np.diff(word, prepend=-1) != 0
        tags = np.where(first, np.array(sample["tags"], np.int64)[word], NOTHING)
        before, after = (np.full(len(each), NOTHING) for each in self._frame)
        return self._framed(np.array(ids, np.int64), labels=np.concatenate([before, tags, after]).astype(np.int64))

    def _in_context(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """A question and a text in which the answer stands: from which token to which."""
        how = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        asked, found = (self._tokenizer(sample[name], **how) for name in ("question", "context"))
        stands = parts.touching(parts.as_offsets(found["offset_mapping"]), [(sample["start"], sample["end"])])
        if not stands.any():
            raise DataError("no token of the context is the answer's", code="no-text")
        before, between, after = self._pair_frame
        ids = [*before, *asked["input_ids"], *between, *found["input_ids"], *after]
        start = len(before) + len(asked["input_ids"]) + len(between)
        whose = np.concatenate([
            _all([*before, *asked["input_ids"], *between], FRAME),
            np.where(stands, ANSWERED, ASKED).astype(np.uint8),
            _all(after, FRAME),
        ])  # fmt: skip
        return {
            "input_ids": np.array(ids, np.int64),
            "parts": whose,
            "token_type_ids": np.array([0] * start + [1] * (len(ids) - start), np.int64),
            "start_positions": start + int(np.flatnonzero(stands)[0]),
            "end_positions": start + int(np.flatnonzero(stands)[-1]),
        }

    @cached_property
    def _pair_frame(self) -> tuple[list[int], list[int], list[int]]:
        """What the tokenizer puts before, between and after two texts; a line break, where it puts nothing between."""
        before, after = self._frame
        plain = list(self._tokenizer("a", add_special_tokens=False)["input_ids"])
        try:
            pair = list(self._tokenizer("a", "a")["input_ids"])
        except TypeError:  # it takes one text
            pair = []
        start, end = len(before) + len(plain), len(pair) - len(after) - len(plain)
        if pair[:start] == before + plain and pair[end : end + len(plain)] == plain and end > start:
            return before, pair[start:end], after
        line = list(self._tokenizer("\n", add_special_tokens=False)["input_ids"])
        return before, line, after


def with_labels(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of which everything is learned, if it does not say what is."""
    if "labels" in sample or "start_positions" in sample:
        return sample
    sample["labels"] = sample["input_ids"].copy()
    return sample


def _as_it_is(sample: Mapping[str, Any]) -> dict[str, Any]:
    ids = np.asarray(sample["input_ids"], np.int64)
    if ids.ndim != 1 or not len(ids):
        raise DataError(f"input_ids has the shape {ids.shape}", code="no-text", expected="one row of tokens")
    kept = {name: np.asarray(sample[name], np.int64) for name in ("labels", "token_type_ids") if name in sample}
    return {"input_ids": ids, "parts": _all(ids, ANSWERED), **kept}


def _all(like: Any, whose: int) -> NDArray[np.uint8]:
    return np.full(len(like), whose, np.uint8)
