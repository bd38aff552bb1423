# SPDX-License-Identifier: Apache-2.0
"""Steps for text: tokenization, masking, truncation, packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.loading.token_table import TokenView, tokenize
from fewbit.data.loading.views import Context, Mapped, Selected, View, lengths_of
from fewbit.data.text.pack import best_fit, join
from fewbit.data.text.roles import ANSWER, CALCULATOR, Ints, kept_around, kept_tokens, masked_labels
from fewbit.data.text.tokenize import Encoded, TextEncoder
from fewbit.data.text.tokenizer import max_tokens, tokenizer_fingerprint
from fewbit.data.types import Issue, Location, Sample, SampleError
from fewbit.errors import DataError, UsageError, plural

_BLOCK = 1000
_FIELDS_OF_PACKING = ("attention_mask", "position_ids", "seq_lens", "roles")


def apply_tokenization(view: View, context: Context) -> View:
    """Texts as tokens: all at once into a table that is kept in the cache, or as they are read if they vary."""
    settings = context.settings
    tokenizer = context.tokenizer()
    encoder = TextEncoder(
        tokenizer, add_eos=settings.add_eos, chat_template=settings.chat_template, separator=settings.separator,
        causal=settings.task not in ("text-classification", "masked-language-modeling"),
    )  # fmt: skip
    if view.varies:
        return _live(view, encoder, context)
    key = None
    if settings.cache_tokens and context.cache_key is not None:
        options = f"{settings.add_eos} {settings.chat_template} {settings.separator!r} {encoder.causal}"
        key = f"tokens 1 {context.cache_key} {tokenizer_fingerprint(tokenizer)} {options}"
    table = tokenize(_encoded(view, encoder, context), key)
    for issue in table.dropped:
        context.preparation.drop_issue(issue)
    if not len(table):
        raise _nothing_left(context)
    return TokenView(view, table)


def _encoded(view: View, encoder: TextEncoder, context: Context) -> Iterator[tuple[int, Encoded | Issue]]:
    """Every sample in order, encoded in blocks."""
    for start in range(0, len(view), _BLOCK):
        results: dict[int, Encoded | Issue] = {}
        samples: dict[int, Sample] = {}
        for index in range(start, min(start + _BLOCK, len(view))):
            try:
                samples[index] = view.get(index)
            except SampleError as error:
                if context.preparation.data.action(error.issue.type) == "raise":
                    raise
                results[index] = error.issue
        encoded = encoder.encode_batch(list(samples.values()), [view.location(index) for index in samples])
        results |= zip(samples, encoded)
        for index in sorted(results):
            result = results[index]
            if isinstance(result, Issue) and context.preparation.data.action(result.type) == "raise":
                raise SampleError(result)  # before anything is kept in the cache
            yield index, result


class LiveTokens(View):
    """Tokens of samples that differ in every epoch, made as they are read."""

    def __init__(self, inner: View, encoder: TextEncoder, lengths: Ints):
        super().__init__(inner)
        self._encoder, self._lengths = encoder, lengths

    def get(self, index: int, epoch: int = 0) -> Sample:
        """The tokens of one sample in one epoch."""
        encoded = self._encoder.encode_batch([self.inner.get(index, epoch)], [self.location(index)])[0]
        if isinstance(encoded, Issue):
            raise SampleError(encoded)
        return as_sample(encoded)

    def lengths(self) -> Ints:
        """Of the first epoch: near enough for grouping."""
        return self._lengths


def _live(view: View, encoder: TextEncoder, context: Context) -> View:
    positions, lengths = [], []
    for index, encoded in _encoded(view, encoder, context):
        if isinstance(encoded, Issue):
            context.preparation.drop_issue(encoded)
        else:
            positions.append(index)
            lengths.append(len(encoded.ids))
    if not positions:
        raise _nothing_left(context)
    return LiveTokens(Selected(view, positions), encoder, np.array(lengths, np.int64))


def as_sample(encoded: Encoded) -> Sample:
    """Tokens as the fields of a sample; everything is learned until the step `masking`."""
    sample: Sample = {"input_ids": encoded.ids, "roles": encoded.roles}
    if encoded.answer is not None:
        sample["start_positions"], sample["end_positions"] = encoded.answer
    else:
        sample["labels"] = encoded.ids.copy() if encoded.target is None else encoded.target
    if encoded.token_type_ids is not None:
        sample["token_type_ids"] = encoded.token_type_ids
    return sample


def apply_masking(view: View, context: Context) -> View:
    """Learn answers and their ends only."""
    return Mapped(view, Masking(context.settings.mask_prompt, context.settings.mask_calculator), keeps_length=True)


@dataclass(frozen=True)
class Masking:
    """Labels by the roles of tokens; classes, tags and labels that came with the tokens stay."""

    mask_prompt: bool
    mask_calculator: bool

    def __call__(self, sample: Sample) -> Sample:
        roles, labels = sample.get("roles"), sample.get("labels")
        if roles is None or labels is None or np.ndim(labels) != 1 or not np.array_equal(labels, sample["input_ids"]):
            return sample
        masked = masked_labels(
            sample["input_ids"], roles, mask_prompt=self.mask_prompt, mask_calculator=self.mask_calculator
        )
        return sample | {"labels": masked}


def apply_truncation(view: View, context: Context) -> View:
    """At most `max_length` tokens, or what the tokenizer says its model takes."""
    limit = context.settings.max_length or max_tokens(context.tokenizer())
    if limit is None:
        return view
    lengths = lengths_of(view)
    long = np.flatnonzero(lengths > limit)
    if not len(long):
        return view
    cut = sum(_answer_is_cut(view.get(int(index)), limit) for index in long)
    note = f"truncation: {plural(len(long), 'sample')} of {len(lengths):,} cut to {limit:,} tokens"
    context.preparation.notes.append(note + (f"; {plural(cut, 'answer')} lost the end" if cut else ""))
    return Truncated(view, limit)


class Truncated(View):
    """Samples of at most so many tokens."""

    def __init__(self, inner: View, limit: int):
        super().__init__(inner)
        self._limit = limit

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One sample, cut if it is too long."""
        sample = self.inner.get(index, epoch)
        count = len(sample["input_ids"])
        if count <= self._limit:
            return sample
        positions = _kept_positions(sample, self._limit)
        shorter = {
            name: np.asarray(value)[positions] if np.ndim(value) and len(value) == count else value
            for name, value in sample.items()
        }
        for name in ("start_positions", "end_positions"):
            if name in sample:
                shorter[name] = min(int(np.searchsorted(positions, sample[name])), len(positions) - 1)
        return shorter

    def lengths(self) -> Ints | None:
        """At most the limit."""
        lengths = self.inner.lengths()
        return None if lengths is None else np.minimum(lengths, self._limit)


def _kept_positions(sample: Sample, limit: int) -> Ints:
    roles = sample.get("roles", np.full(len(sample["input_ids"]), ANSWER, np.uint8))
    return (kept_around if "start_positions" in sample else kept_tokens)(roles, limit)


def _answer_is_cut(sample: Sample, limit: int) -> bool:
    learned = np.isin(sample.get("roles", ()), (ANSWER, CALCULATOR))
    return bool(learned[_kept_positions(sample, limit)].sum() < learned.sum()) if len(learned) else False


def apply_packing(view: View, context: Context) -> View:
    """Several samples per row of `max_length` tokens; none of them attends to another."""
    capacity = context.settings.max_length
    if capacity is None:
        raise UsageError(
            "packing needs the length of a row", code="packing-length", param="max_length",
            expected="a number of tokens", hint="custom_config={'max_length': 1024}",
        )  # fmt: skip
    if view.varies:
        raise UsageError(
            "packing needs samples that are the same in every epoch", code="packing-varies",
            param="preprocessing_steps", expected="no augmentation of texts",
            hint="leave out 'augmentation' or 'packing'",
        )  # fmt: skip
    if len(view) and "input_ids" not in view.get(0):
        raise DataError(
            "packing found no tokens", code="no-tokens", where=str(view.location(0)), expected="input_ids",
            hint="put 'tokenization' before 'packing'",
        )  # fmt: skip
    pieces = _pieces(view, lengths_of(view), capacity, context)
    sizes = pieces[:, 2] - pieces[:, 1]
    rows = best_fit(sizes, capacity, context.settings.seed)
    if rows:
        filled = sizes.sum() / (len(rows) * capacity)
        context.preparation.notes.append(
            f"packing: {len(sizes):,} samples in {plural(len(rows), 'row')}, {filled:.1%} full"
        )
    return Packed(view, pieces, rows)


def _pieces(view: View, lengths: Ints, capacity: int, context: Context) -> Ints:
    """Sample, first and last token of each piece; samples longer than a row are split, dropped or an error."""
    long = np.flatnonzero(lengths > capacity)
    action = context.settings.packing_long
    if len(long) and action == "error":
        examples = ", ".join(f"{view.location(int(index))} ({lengths[index]:,} tokens)" for index in long[:3])
        raise DataError(
            f"{plural(len(long), 'sample')} of {len(lengths):,} longer than a row", code="longer-than-row",
            where=examples, expected=f"at most {capacity:,} tokens",
            hint="put 'truncation' before 'packing', or packing_long='split'",
        )  # fmt: skip
    for index in np.flatnonzero(lengths == 0):
        context.preparation.drop("packing: no tokens", view.location(int(index)))
    if action == "drop":
        for index in long:
            context.preparation.drop("packing: longer than a row", view.location(int(index)))
    samples = np.flatnonzero((lengths > 0) & ((lengths <= capacity) | (action == "split")))
    piece_counts = -(-lengths[samples] // capacity)
    sample = np.repeat(samples, piece_counts)
    start = (np.arange(len(sample)) - np.repeat(np.cumsum(piece_counts) - piece_counts, piece_counts)) * capacity
    return np.stack([sample, start, np.minimum(start + capacity, lengths[sample])], axis=1)


class Packed(View):
    """Rows of several samples."""

    def __init__(self, inner: View, pieces: Ints, rows: Sequence[Sequence[int]]):
        super().__init__(inner)
        self._pieces, self.rows = pieces, rows

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, index: int, epoch: int = 0) -> Sample:
        """One row."""
        pieces = [
            (self.inner.get(int(sample), epoch), int(start), int(stop)) for sample, start, stop in self._of(index)
        ]
        first = pieces[0][0]
        count = len(first["input_ids"])
        if not np.all(first.get("attention_mask", True)):
            raise DataError(
                "packing found padding", code="packing-padded", where=str(self.location(index)),
                expected="tokens only", hint="put 'padding' after 'packing'",
            )  # fmt: skip
        fields = [
            name for name, value in first.items()
            if name not in _FIELDS_OF_PACKING and np.ndim(value) == 1 and len(value) == count
        ]  # fmt: skip
        return join(pieces, fields)

    def location(self, index: int) -> Location:
        """Where the first sample of a row comes from."""
        return self.inner.location(int(self._of(index)[0, 0]))

    def lengths(self) -> Ints:
        """Tokens of each row."""
        sizes = self._pieces[:, 2] - self._pieces[:, 1]
        return np.array([sizes[list(row)].sum() for row in self.rows], np.int64)

    def strata(self) -> None:
        """A row has samples of several classes."""
        return

    def _of(self, index: int) -> Any:
        return self._pieces[list(self.rows[index])]


def _nothing_left(context: Context) -> DataError:
    lines = context.preparation.lines()
    return DataError(
        "no sample can be used" + (f": {lines[0]}" if lines else ""), code="no-samples", expected="at least one",
        hint="`fewbit check` lists what is wrong with the data",
    )  # fmt: skip
