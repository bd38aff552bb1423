# SPDX-License-Identifier: Apache-2.0
"""`as_inputs`: a dataset of texts as the inputs of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from fewbit.data.arrays.input_names import ANSWERS
from fewbit.data.dataset import Dataset
from fewbit.data.sample import Sample
from fewbit.data.signature import Signature, read_signature
from fewbit.data.source import Source
from fewbit.data.text import packing, pictures
from fewbit.data.text.encoding import Encoder
from fewbit.data.text.feeding import Inputs
from fewbit.data.text.model_facts import ModelFacts, facts_of
from fewbit.data.text.named import open_text
from fewbit.data.text.packed import Packed
from fewbit.data.text.rows import holds_text, rows_of
from fewbit.data.text.tally import Tally
from fewbit.data.text.tokenizer import frame, open_tokenizer
from fewbit.data.text.wording import TRY, Wording
from fewbit.errors import DataError, UsageError

SEQLEN = 512
"""The most tokens of a sample, where nothing else is said."""
LABEL = "label"
"""What a sample calls the class that its row is said to be of."""
_LOOK = 8
"""So many rows say how all are laid out."""


def as_inputs(
    dataset: Any, model: Any, takes: Any, *, seqlen: int = SEQLEN, pack: str | None = None, column: str | None = None
) -> Dataset:
    """The dataset as inputs of the model: tokenized if it is text and the model takes tokens, else as it is.

    The same rows give the same samples, in the order of the rows. They are made as they are asked for, and each row is
    read once. The dataset's record says what became of the rows.

    Args:
        dataset: a `Dataset`, anything `Dataset` takes, `"wikitext"`, `"pileval"`, or one of them with `=PATH`.
        model: the model's folder, a file in it, a Hugging Face model that came from one, a tokenizer or a processor.
        takes: what says which inputs the model has.
        seqlen: the most tokens of a sample; no more than the model has places for.
        pack: `"concatenate"`, rows joined by the end-of-text and cut, nothing filled up and nothing lost but the end;
            `"pad"`, one row a sample, cut, filled up only if the model has inputs of a fixed length. Decoders read
            running text if this is not given, all others one row at a time.
        column: the column that holds the text, instead of those that look like it.

    Raises:
        UsageError: an option that cannot be, or has nothing to do here.
        DataError: no tokenizer, or no text in any row.
    """
    opened = dataset if isinstance(dataset, Dataset) else Dataset(open_text(dataset))
    signature = read_signature(takes)
    if seqlen < 1:
        raise UsageError(f"seqlen={seqlen}", where="seqlen", expected="1 or more")
    if pack is not None:
        packing.check_pack(pack)
    if "input_ids" not in signature.names or not holds_text(next(iter(opened), None)):
        if column is not None:
            raise UsageError(
                f"the text is said to be in {column!r}, and nothing is tokenized here",
                where="--text-column",
                expected="rows of text, a model that takes input_ids, and no transform",
            )
        return opened
    first = list(islice(rows_of(opened.source), _LOOK))
    wording = Wording(first, column, opened.source.targets | ANSWERS)
    pictured = pictures.picture_column(first, signature)
    if pictured is None:
        facts = facts_of(model, takes)
        return Dataset(_packed(opened.source, wording, open_tokenizer(model), signature, facts, seqlen, pack, []))
    return Dataset(_pictured(opened.source, wording, pictured, pictures.open_processor(model), signature, seqlen, []))


def _packed(
    source: Source,
    wording: Wording,
    tokenizer: Any,
    signature: Signature,
    facts: ModelFacts,
    seqlen: int,
    pack: str | None,
    tallies: list[Tally],
) -> Packed:
    inputs = Inputs(signature, tokenizer, facts)
    limits = (inputs.length, facts.positions, tokenizer.model_max_length)
    longest = min(seqlen, *(limit for limit in limits if limit))
    if longest <= sum(map(len, frame(tokenizer))):
        raise UsageError(
            f"samples of {longest} tokens",
            where="seqlen",
            expected=f"more than the {sum(map(len, frame(tokenizer)))} special tokens around each text",
        )
    chosen = pack or ("concatenate" if _runs(facts, tokenizer, signature) else "pad")
    way = packing.concatenate if chosen == "concatenate" else packing.one_by_one

    def samples(tally: Tally) -> Iterator[Sample]:
        for found, place in way(rows_of(source), wording, Encoder(tokenizer, tally), longest, tally):
            made, filled = inputs(found)
            tally.sample(len(found.tokens), filled)
            # For whoever compares classifiers; under a name that no language model has an input of.
            label = {} if found.label is None or LABEL in signature.names else {LABEL: found.label}
            yield Sample({**made, **label}, place=place)

    def again(rows: Source) -> Packed:
        return _packed(rows, wording, tokenizer, signature, facts, seqlen, pack, tallies)

    make = _tallied(source, wording, chosen, longest, samples, tallies)
    return Packed(source, make, alike=way is packing.concatenate, again=again)


def _runs(facts: ModelFacts, tokenizer: Any, signature: Signature) -> bool:
    """Whether the model reads running text. If it does not say: encoders have masks to fill in, or kinds of text."""
    if facts.writes is not None:
        return facts.writes
    kinds = any(spec.name == "token_type_ids" and spec.required for spec in signature.inputs)
    return tokenizer.mask_token is None and not kinds


def _pictured(
    source: Source,
    wording: Wording,
    column: str,
    processor: Any,
    signature: Signature,
    seqlen: int,
    tallies: list[Tally],
) -> Packed:
    def items(tally: Tally) -> Iterator[Any]:
        for made in pictures.with_pictures(rows_of(source), wording, column, processor, signature, tally):
            tally.sample(made["input_ids"].numel())
            yield made

    def again(rows: Source) -> Packed:
        return _pictured(rows, wording, column, processor, signature, seqlen, tallies)

    make = _tallied(source, wording, "pad", seqlen, items, tallies)
    return Packed(source, make, batched=True, alike=False, again=again)


def _tallied(
    source: Source,
    wording: Wording,
    pack: str,
    seqlen: int,
    make: Callable[[Tally], Iterator[Any]],
    tallies: list[Tally],
) -> Callable[[], Iterator[Any]]:
    """A reading with its counts, which take the place of those of a reading before it, kept in `tallies`."""

    def start() -> Iterator[Any]:
        for old in tallies:
            old.forget()
        tally = Tally(source.record, columns=wording.columns, unused=wording.unused, pack=pack, seqlen=seqlen)
        tallies[:] = [tally]
        yield from make(tally)
        tally.write()
        if not tally.samples:
            raise DataError(
                f"none of {tally.rows} rows has any text",
                code="no-text",
                where=", ".join(wording.columns),
                expected="rows that say something",
                try_=TRY,
            )

    return start
