# SPDX-License-Identifier: Apache-2.0
"""Steps for text: tokenization, masking, truncation, packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fewbit.data.loading.token_table import token_table
from fewbit.data.loading.views import Context, View, lengths_of
from fewbit.data.text import pack as packing
from fewbit.data.text import roles
from fewbit.data.text.encoder import TextEncoder
from fewbit.data.text.roles import Ints
from fewbit.data.text.tokenizer import check_room, max_tokens, tokenizer_fingerprint
from fewbit.data.types import Issue, Location, Sample, SampleError
from fewbit.errors import DataError, UsageError, plural

_FIELDS_OF_PACKING = ("attention_mask", "position_ids", "seq_lens", "roles")


def tokenize(view: View, context: Context) -> View:
    """Texts as tokens: all at once into a table that is kept in the cache, or as they are read if they vary."""
    settings, tokenizer = context.settings, context.config.tokenizer
    causal = settings.task not in ("text-classification", "masked-language-modeling")
    options: dict[str, Any] = {"add_eos": settings.add_eos, "chat_template": settings.chat_template}
    options["separator"] = settings.separator
    encoder = TextEncoder(tokenizer, causal=causal, **options)
    if view.varies:
        return _tokenize_live(view, encoder, context)
    key = None
    if settings.cache_tokens and context.cache_key is not None:
        key = f"tokens 2 {context.cache_key} {tokenizer_fingerprint(tokenizer)} {causal} {options}"
    table = token_table(view, _encoded(view, encoder, context), key)
    for issue in table.dropped:
        context.preparation.drop_issue(issue)
    return View(table, lengths=table.lengths)


def _encoded(view: View, encoder: TextEncoder, context: Context) -> Iterator[tuple[int, Sample | Issue]]:
    """Every sample or its issue; what `on_error` wants to raise is raised before a table is kept."""
    for index, result in encoder.encode_all(view):
        if isinstance(result, Issue) and context.preparation.data.action(result.type) == "raise":
            raise SampleError(result)
        yield index, result


def _tokenize_live(view: View, encoder: TextEncoder, context: Context) -> View:
    """Samples that differ in every epoch: those of epoch 0 say which can be used and how long they are."""
    usable, lengths = [], []
    for index, result in _encoded(view, encoder, context):
        if isinstance(result, Issue):
            context.preparation.drop_issue(result)
        else:
            usable.append(index)
            lengths.append(len(result["input_ids"]))
    return view.select(usable).map(partial(_encode_one, encoder), np.array(lengths, np.int64))


def _encode_one(encoder: TextEncoder, sample: Sample) -> Sample:
    result = encoder.encode([sample])[0]
    if isinstance(result, Issue):
        raise SampleError(result)
    return result


def mask(view: View, context: Context) -> View:
    """Learn answers and their ends only."""
    settings = context.settings
    masking = partial(roles.mask_labels, mask_prompt=settings.mask_prompt, mask_calculator=settings.mask_calculator)
    return view.map(masking, view.lengths)


def truncate(view: View, context: Context) -> View:
    """At most `max_length` tokens, or what the tokenizer says its model takes."""
    tokenizer = context.config.tokenizer
    limit = context.settings.max_length or max_tokens(tokenizer)
    if limit is None:
        return view
    check_room(limit, tokenizer)
    lengths = lengths_of(view)
    cut_answers, too_long = 0, set()
    long = np.flatnonzero(lengths > limit).tolist()
    for index in long:
        sample = view.get(index)
        try:
            shorter = roles.truncate(sample, limit)
        except SampleError as error:
            context.preparation.drop_issue(Issue(error.issue.type, error.issue.message, view.location(index)))
            too_long.add(index)
            continue
        if "roles" in sample:
            cut_answers += bool(roles.supervised(shorter).sum() < roles.supervised(sample).sum())
    if long:
        note = f"truncation: {plural(len(long), 'sample')} of {len(lengths):,} cut to {limit:,} tokens"
        context.note(note + (f"; {plural(cut_answers, 'answer')} lost the end" if cut_answers else ""))
    if too_long:
        view = view.select([index for index in range(len(view)) if index not in too_long])
    if not long and not view.varies:
        return view
    return view.map(partial(roles.truncate, max_length=limit), np.minimum(lengths_of(view), limit))


def pack(view: View, context: Context) -> View:
    """Several samples per row of `max_length` tokens; none of them attends to another."""
    capacity = context.settings.max_length
    assert capacity is not None  # the configuration makes sure of that
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
    pieces = _pieces(view, capacity, context)
    sizes = pieces[:, 2] - pieces[:, 1]
    rows = packing.best_fit(sizes, capacity, context.settings.seed)
    lengths = np.array([sizes[row].sum() for row in rows], np.int64)
    if rows:
        full = sizes.sum() / (len(rows) * capacity)
        context.note(f"packing: {len(sizes):,} samples in {plural(len(rows), 'row')}, {full:.1%} full")
    return View(PackedSamples(view, [pieces[row] for row in rows]), lengths=lengths)


def _pieces(view: View, capacity: int, context: Context) -> Ints:
    """Sample, first and last token of each piece; samples longer than a row are split, dropped or an error."""
    lengths, action = lengths_of(view), context.settings.packing_long
    long = np.flatnonzero(lengths > capacity)
    if len(long) and action == "error":
        examples = ", ".join(f"{view.location(int(index))} ({lengths[index]:,} tokens)" for index in long[:3])
        raise DataError(
            f"{plural(len(long), 'sample')} of {len(lengths):,} longer than a row", code="longer-than-row",
            where=examples, expected=f"at most {capacity:,} tokens",
            hint="put 'truncation' before 'packing', or packing_long='split'",
        )  # fmt: skip
    pieces = []
    for index, length in enumerate(lengths.tolist()):
        if length == 0 or (length > capacity and action == "drop"):
            reason = "longer than a row" if length else "no tokens"
            context.preparation.drop(f"packing: {reason}", view.location(index))
            continue
        pieces += [(index, start, min(start + capacity, length)) for start in range(0, length, capacity)]
    return np.array(pieces, np.int64).reshape(-1, 3)


@dataclass(frozen=True, eq=False)
class PackedSamples:
    """Rows of several samples: for each row the sample, first and last token of its pieces."""

    view: View
    rows: Sequence[Ints]

    def __len__(self) -> int:
        return len(self.rows)

    def get(self, index: int, epoch: int = 0) -> Sample:
        pieces = [(self.view.get(sample, epoch), start, stop) for sample, start, stop in self.rows[index].tolist()]
        first = pieces[0][0]
        if not np.all(first.get("attention_mask", True)):
            raise DataError(
                "packing found padding", code="packing-padded", where=str(self.location(index)),
                expected="tokens only", hint="put 'padding' after 'packing'",
            )  # fmt: skip
        fields = [
            name for name, value in first.items()
            if name not in _FIELDS_OF_PACKING and np.ndim(value) == 1 and len(value) == len(first["input_ids"])
        ]  # fmt: skip
        return dict(packing.join(pieces, fields))

    def location(self, index: int) -> Location:
        """Where the first sample of a row comes from."""
        return self.view.location(int(self.rows[index][0, 0]))

    def strata(self) -> None:
        """A row has samples of several classes."""
        return
