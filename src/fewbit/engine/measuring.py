# SPDX-License-Identifier: Apache-2.0
"""How well a quantized model works: its outputs on held-out samples next to those of the float model.

The float outputs are computed before the run, of a few samples, because the run may change the model in place. Of a
language model the logits of a few positions are kept.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewbit.data.batch import count_samples
from fewbit.data.drawing import SEED
from fewbit.data.signature import Signature, read_signature
from fewbit.data.tree import flatten, is_tensor
from fewbit.engine.choices import compare_choices
from fewbit.engine.collect import HELD_OUT_EVERY, is_held_out
from fewbit.engine.judging_tokens import scores_of
from fewbit.engine.nearness import nearness
from fewbit.engine.pairing import Pair
from fewbit.engine.questions import Question, named_inputs
from fewbit.engine.sqnr import sqnr
from fewbit.errors import BrokenResultWarning, RuntimeDiffersWarning
from fewbit.model.view import Item, ModelView
from fewbit.record import Record

SAMPLES = 64
"""Held-out samples that a result is measured on; items are taken whole. Rare classes are to be among them."""
_TEXTS, _POSITIONS = 8, 32  # samples of a language model, and positions of each sample
_BYTES = 64 << 20  # of inputs and of outputs; at least one item is taken
_WORST = 3


@dataclass(frozen=True)
class Reference:
    """Outputs of the float model.

    Args:
        items: the inputs.
        numbers: their numbers in the data.
        outputs: of each, what is compared.
        chosen: of each, where in its outputs the logits are that are compared; `None` if all outputs are.
        held_out: whether the items are held out from calibration.
    """

    items: list[Item]
    numbers: list[int]
    outputs: list[list[Tensor]]
    chosen: list[tuple[int, Tensor] | None]
    held_out: bool

    @property
    def samples(self) -> int:
        """How many samples the items hold."""
        return sum(map(count_samples, self.items))

    @staticmethod
    def compared(outputs: list[Tensor], chosen: tuple[int, Tensor] | None) -> list[Tensor]:
        """Of an item's outputs those that are compared."""
        if chosen is None:
            return [output.clone() for output in outputs]
        logits = outputs[chosen[0]]
        return [logits.reshape(-1, logits.shape[-1])[chosen[1]]]


class Enough:
    """Says of held-out items whether one more is taken.

    Args:
        named: the inputs of an item by name: of texts fewer are taken.
        item: the first item.
        in_order: how many items there are at most, if they come in the order of the data: those that are taken are then
            spread over all of them. Otherwise the first ones are taken.
    """

    def __init__(self, named: Mapping[str, Any], item: Item, in_order: int | None = None):
        self._samples, self._bytes = 0, 0
        self._most = SAMPLES if Question(None, named, "").tokens() is None else _TEXTS
        wanted = min(-(-self._most // max(1, count_samples(item))), -(-_BYTES // max(1, _size(item))))
        self._chosen = None if in_order is None else _spread(in_order // HELD_OUT_EVERY, wanted)

    def take(self, item: Item, number: int) -> bool:
        """Whether to take this held-out item, by its number among all items."""
        if self.full or (self._chosen is not None and number not in self._chosen):
            return False
        self._samples += count_samples(item)
        self._bytes += _size(item)
        return True

    @property
    def full(self) -> bool:
        """Whether no more will be taken."""
        return self._samples > 0 and (self._samples >= self._most or self._bytes >= _BYTES)


def _size(item: Item) -> int:
    return sum(leaf.nbytes for _, leaf in flatten(item) if is_tensor(leaf))


def _spread(held_out: int, wanted: int) -> set[int]:
    """The numbers of some held-out items: one at random of each of as many equal parts."""
    chooser, parts = random.Random(SEED), min(wanted, held_out)
    chosen = (chooser.randrange(i * held_out // parts, (i + 1) * held_out // parts) for i in range(parts))
    return {each * HELD_OUT_EVERY + HELD_OUT_EVERY - 1 for each in chosen}


def reference_outputs(
    view: ModelView, items: Iterable[Item], record: Record, *, in_order: int | None = None
) -> Reference | None:
    """Run the float model on held-out samples of its calibration data.

    Args:
        view: of the float model.
        items: the data from its beginning; read as far as needed.
        record: takes a line if the model cannot be measured.
        in_order: as in `Enough`.
    """
    numbered, held_out = _taken(items, read_signature(view.signature()), in_order)
    return reference_on(view, numbered, record, held_out=held_out)


def reference_on(
    view: ModelView, numbered: Sequence[tuple[int, Item]], record: Record, *, held_out: bool
) -> Reference | None:
    """Run the float model on items.

    Args:
        view: of the float model.
        numbered: the items, with their numbers in the data.
        record: takes a line if the model cannot be measured.
        held_out: whether the items are held out from calibration.
    """
    signature = read_signature(view.signature())
    found = Reference([], [], [], [], held_out)
    size = 0
    try:
        for (number, item), outputs in zip(numbered, view.answers([item for _, item in numbered])):
            chosen = _logits(item, outputs, signature)
            compared = found.compared(outputs, chosen)
            if not compared or not all(map(_is_finite, compared)):
                continue
            found.items.append(item)
            found.numbers.append(number)
            found.outputs.append(compared)
            found.chosen.append(chosen)
            size += sum(output.nbytes for output in compared)
            if size > _BYTES and chosen is None:
                break
    except Exception as error:  # a measurement does not end a run; calibration reports what is wrong with an item
        record.note("not-measured", f"the float model fails on a held-out sample: {_first_line(error)}")
        return None
    if not found.items:
        record.note("not-measured", "the float model's outputs on held-out samples are not finite numbers")
        return None
    return found


def measure(view: ModelView, reference: Reference, record: Record) -> list[list[Tensor]]:
    """Compare a quantized model with the float model, and put the figures in the record.

    Args:
        view: of the quantized model.
        reference: outputs of the float model.
        record: of the run; gets a line `broken` if the result does not work.

    Returns:
        The outputs that were compared, item by item; empty if the model fails.
    """
    try:
        answered = zip(view.answers(reference.items), reference.chosen)
        found = [reference.compared(outputs, chosen) for outputs, chosen in answered]
    except Exception as error:  # the result of a long run is written all the same, and said to be broken
        reason = f"it fails on a held-out sample: {_first_line(error)}"
        record.note("broken", reason, worst=worst_layers(record))
        return []
    facts = {**nearness(reference.outputs, found), "samples": reference.samples, "kept_aside": reference.held_out}
    if facts["worst_item"] is not None:
        facts["worst_item"] = reference.numbers[facts["worst_item"]]
    if positions := sum(len(chosen[1]) for chosen in reference.chosen if chosen is not None):
        facts["positions"] = positions
    language = any(chosen is not None for chosen in reference.chosen)
    choices = compare_choices(
        reference.outputs, found, [count_samples(item) for item in reference.items], language=language
    )
    if choices.agreement is not None:
        facts["agreement"] = choices.agreement
    if choices.others is not None:
        facts["agreement_on_other_choices"] = choices.others
    facts["sqnr_db"] = sqnr(reference.outputs, found)
    record.facts["answers"] = facts
    if not all(_is_finite(output) for outputs in found for output in outputs):
        record.note("broken", f"its outputs are not finite numbers, {on_samples(facts)}", worst=worst_layers(record))
    elif any(a.shape != b.shape for ours, theirs in zip(reference.outputs, found) for a, b in zip(ours, theirs)):
        record.note("output-shapes-differ", "the quantized model's outputs have other shapes: they are not compared")
    elif why := choices.reason(facts["error"], sqnr(reference.outputs, found, about_mean=True)):
        record.note(
            "broken", f"{why} {on_samples(facts)}, relative error {facts['error']:.2g}", worst=worst_layers(record)
        )
    return found


def on_samples(facts: Mapping[str, Any]) -> str:
    """On how many samples of which kind a result was measured.

    >>> on_samples({"samples": 1, "kept_aside": True}), on_samples({"samples": 4, "kept_aside": False})
    ('on 1 held-out sample', 'on 4 calibration samples')
    """
    kind = "held-out" if facts["kept_aside"] else "calibration"
    return f"on {facts['samples']} {kind} sample{'' if facts['samples'] == 1 else 's'}"


def is_broken(record: Record) -> bool:
    """Whether the result of a run was measured, and does not work."""
    return any(line["what"] == "broken" for line in record.lines)


def warn_of_result(record: Record) -> None:
    """Warn a caller in Python of a result that does not work, or that ONNX Runtime computes in another way."""
    for line in record.lines:
        if line["what"] == "runtime-differs":
            warnings.warn(line["reason"], RuntimeDiffersWarning, stacklevel=3)
        if line["what"] == "broken":
            worst = line.get("worst") or []
            ignore = f", or ignored_scope=IgnoredScope(names={worst!r})" if worst else ""
            warnings.warn(
                f"the result does not work: {line['reason']}; try more bits, such as preset='w8a16' of quantize or "
                f"mode='int8_asym' of compress_weights{ignore}",
                BrokenResultWarning,
                stacklevel=3,
            )


def worst_layers(record: Record) -> list[str]:
    """The layers whose weights lost most, as far as their errors are known."""
    errors = {
        str(line["where"]).removesuffix(".weight"): float(line.get("held_out_error", line.get("error", 0.0)) or 0.0)
        for line in record.lines
        if line["what"] == "quantized" and line["where"]
    }
    ranked = sorted((name for name, error in errors.items() if error > 0), key=lambda name: -errors[name])
    return ranked[:_WORST]


def _taken(items: Iterable[Item], signature: Signature, in_order: int | None) -> tuple[list[tuple[int, Item]], bool]:
    """Held-out items with their numbers; the first items if there are too few to hold one out."""
    first: list[tuple[int, Item]] = []
    kept: list[tuple[int, Item]] = []
    enough: Enough | None = None
    for number, item in enumerate(items):
        if enough is None:
            enough = Enough(named_inputs(item, signature), item, in_order)
        if is_held_out(number):
            if enough.take(item, number):
                kept.append((number, item))
            if enough.full:
                break
        elif number < HELD_OUT_EVERY - 1:
            first.append((number, item))
    return (kept, True) if kept else (first, False)


def _logits(item: Item, outputs: list[Tensor], signature: Signature) -> tuple[int, Tensor] | None:
    """Which output of a language model has logits, and a few of the rows that are no padding."""
    question = Question(item, named_inputs(item, signature), "")
    output = scores_of(Pair(question, 0, 0, outputs, outputs))
    if output is None:
        return None
    real = question.real(outputs[output])
    assert real is not None
    rows = real.flatten().nonzero().flatten()
    most = _POSITIONS * max(1, len(real))
    return output, rows[torch.linspace(0, len(rows) - 1, min(most, len(rows))).long()]


def _is_finite(output: Tensor) -> bool:
    return not output.is_floating_point() or bool(torch.isfinite(output).all())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
