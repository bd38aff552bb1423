# SPDX-License-Identifier: Apache-2.0
"""`compare`: how far a compressed model's answers are from the original's, how sure that is, and which layers do it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from torch import nn

from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw, report_subset
from fewbit.data.findings import Progress
from fewbit.data.source import known_length
from fewbit.data.text import as_inputs
from fewbit.engine.damage import Damage
from fewbit.engine.judging import KINDS, Judge, judge_for
from fewbit.engine.pairing import Pair, pairs
from fewbit.engine.ranking import note_layers
from fewbit.engine.run import view_of
from fewbit.engine.second_model import open_second, record_of_model
from fewbit.errors import DataError, UsageError
from fewbit.model.points import Role
from fewbit.model.view import ModelView
from fewbit.record import Record


def compare(
    original: Any,
    compressed: Any,
    data: Any,
    *,
    kind: str | None = None,
    samples: int | None = None,
    batch_size: int = 1,
    seqlen: int = 512,
    pack: str | None = None,
    text_column: str | None = None,
    progress: Progress | None = None,
) -> Record:
    """Ask two models the same questions and say how far their answers are apart.

    Args:
        original: an `nn.Module`, a Hugging Face folder, a folder `export` wrote, an ONNX model or its path.
        compressed: the same kinds, not necessarily the same one. Neither model is changed.
        data: anything `Dataset` takes; rows of text are tokenized by the original's tokenizer. With labels in it, the
            accuracy of classifiers is compared too.
        kind: what answers are: `"language"`, scores of the next token; `"classes"`, scores `[samples, classes]`;
            `"values"`, anything else. Found by looking if not given: two axes are taken for classes.
        samples: read at most so many, a random sample of the data by a fixed seed; of a loader whole batches.
        batch_size: how many to run at a time.
        seqlen: the most tokens of a sample of text.
        pack: how rows of text become samples: `"concatenate"`, which decoders have if it is not given, or `"pad"`.
        text_column: the column that holds the text, if its name does not say.
        progress: shows how far it is.

    Returns:
        A record. Its facts have each figure as `value`, `low` and `high`, a 95 % interval that takes the spread between
        samples and not between positions; `verdict` says in words what may be said. For modules its lines rank the
        layers by their local errors.

    Raises:
        UsageError: a model that cannot be opened, an unknown kind.
        DataError: no samples, samples that do not fit, answers that are not finite or of other shapes.

    >>> import torch
    >>> model = torch.nn.Linear(8, 4).eval()
    >>> compare(model, model, [torch.ones(1, 8) * i for i in range(3)]).facts["agreement"]["value"]
    1.0
    """
    if kind is not None and kind not in KINDS:
        raise UsageError(f"kind={kind!r}", where="kind", expected=", ".join(KINDS))
    first = view_of(original)
    second = open_second(compressed, first)
    dataset = as_inputs(data, original, first.signature(), seqlen=seqlen, pack=pack, column=text_column)
    dataset = dataset if samples is None else draw(dataset, samples)
    record, damage = Record("compare"), _damage(first, second)
    record.facts["bytes"] = {"original": first.size(), "compressed": second.size()}
    asked = pairs(dataset, first, second, batch_size=batch_size, damage=damage)
    tracked = (progress or Progress()).track(asked, total=_items(dataset, batch_size), label="comparing")
    judge, items = _judged(tracked, first, kind, record)
    said = judge.verdict()
    record.facts |= {"kind": judge.kind, "items": items, "samples": judge.samples, "verdict": said, **judge.facts()}
    record.note("verdict", said, samples=judge.samples)
    if damage is None:
        record.note("layers-not-ranked", "layers are measured one by one where both models are PyTorch modules")
    else:
        note_layers(damage, record, record_of_model(compressed))
    used = {"labels-left-out"} if "accuracy" in record.facts else set()
    report_subset(dataset, record)
    record.lines += [line for line in dataset.record.lines if line["what"] not in used]
    for where, what in dict.fromkeys(chain(first.notes, second.notes)):
        record.note("run", what, where=where)
    return record


def _judged(answered: Iterable[Pair], view: ModelView, kind: str | None, record: Record) -> tuple[Judge, int]:
    judge: Judge | None = None
    items = 0
    for pair in answered:
        judge = judge or judge_for(pair, view, kind, record)
        judge.take(pair)
        items += 1
    if judge is None or not judge.samples:
        raise DataError("there is nothing to compare: no sample", code="no-samples", where="data")
    return judge, items


def _damage(original: ModelView, compressed: ModelView) -> Damage | None:
    ours, theirs = original.signature(), compressed.signature()
    if not isinstance(ours, nn.Module) or not isinstance(theirs, nn.Module):
        return None
    return Damage(ours, theirs, _layers(original, compressed))


def _layers(original: ModelView, compressed: ModelView) -> Iterator[str]:
    """Layers that hold weights in the original or codes in the other."""
    yield from (point.layer for point in original.points(lambda point: point.role is Role.weight))
    yield from compressed.quantized()


def _items(dataset: Dataset, batch_size: int) -> int | None:
    length = known_length(dataset.source)
    return None if length is None else length if dataset.batched else -(-length // batch_size)
