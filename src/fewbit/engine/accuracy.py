# SPDX-License-Identifier: Apache-2.0
"""`quantize_with_accuracy_control`: as much in integers as a drop in accuracy allows.

Which layers to give back to float is known beforehand: each one's share of the error was measured, so a price of error
orders them all, and only the price is looked for. Every price is judged on the real model by the user's own function.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.data.drawing import items_in_order, report_subset
from fewbit.data.findings import Progress
from fewbit.data.text import as_inputs
from fewbit.engine.delivery import Delivery
from fewbit.engine.item_places import ItemPlaces
from fewbit.engine.measuring import warn_of_result
from fewbit.engine.nearness import nearness
from fewbit.engine.options import PRICE, Options
from fewbit.engine.planning import make_plan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.reporting import warn_of_calibration
from fewbit.engine.run import calibration_subset, facts_of, probe, refuse_weights, view_of
from fewbit.engine.scoping import without
from fewbit.engine.static import Calibrated, calibrate
from fewbit.engine.verbs import configuration
from fewbit.errors import DataError, NothingQuantizedWarning, UsageError
from fewbit.model.placing import Placed
from fewbit.model.view import ModelView
from fewbit.record import Record
from fewbit.schemes.config import Config
from fewbit.schemes.scope import IgnoredScope

ValidationFn = Callable[[Any, Iterable[Any]], Any]

_PRICES = tuple(PRICE * 4.0**-step for step in range(8))
"""From what `quantize` takes by default down to where almost nothing is in integers."""


def quantize_with_accuracy_control(
    model: Any,
    calibration_dataset: Any,
    validation_dataset: Any,
    validation_fn: ValidationFn | None = None,
    *,
    max_drop: float = 0.01,
    drop_type: str = "absolute",
    preset: str | Config | None = None,
    target: str | None = None,
    subset_size: int = 300,
    fast_bias_correction: bool = True,
    ignored_scope: IgnoredScope | None = None,
    advanced_parameters: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Any:
    """Quantize a model as far as its accuracy allows; the layers that cost most stay in float.

    Args:
        model: an ONNX model or its path. It is not changed.
        calibration_dataset: anything `Dataset` takes; rows of text are tokenized by the tokenizer beside the model.
        validation_dataset: what accuracy is measured on, the same kinds.
        validation_fn: takes a model of the kind that was given (a `ModelProto`) and the validation data as model
            inputs, and returns a number, the higher the better, or a tuple that begins with it. By default the share of
            answers whose largest entry is that of the float model; of a model without such answers, 1 minus the error.
        max_drop: how much lower it may be than the float model's.
        drop_type: `"absolute"`, or `"relative"` to the float model's.
        preset: as in `quantize`; static activations.
        target: as in `quantize`.
        subset_size: how much of the calibration data is read, items of a loader or else samples; see `quantize`.
        fast_bias_correction: as in `quantize`.
        ignored_scope: nodes that stay in float whatever happens.
        advanced_parameters: as in `quantize`; `price` is where the search begins.
        output: a file to write to; its path is then returned.
        progress: shows how far it is.

    Returns:
        The quantized model, or its path. The record says, for each layer kept for the accuracy's sake, what it costs in
        bytes and in expected time.

    Raises:
        UsageError: a model without a graph, no static activations, a drop that is no number from 0 up, a function that
            returns no finite number.
    """
    relative = _relative(max_drop, drop_type)
    correct = "fast_bias_correction" if fast_bias_correction else "bias_correction"
    options = Options.read(advanced_parameters, target=target, correct=correct)
    view: Any = view_of(model)
    if "place" not in view.can:
        raise UsageError(
            "accuracy control of a PyTorch module", where="model", expected="an ONNX model", try_="torch.onnx.export it"
        )
    view.aim(options.target, options.accuracy_level)
    deliver = Delivery(view, output, options)
    quantizer = ModelQuantizer(without(configuration(preset or "w8a8"), ignored_scope, view))
    calibration, validation = (
        _inputs(data, model, view, options) for data in (calibration_dataset, validation_dataset)
    )
    run = _calibrated(quantizer, view, calibration, subset_size, options, progress or Progress())
    judge = _Judge(view, validation, validation_fn, options.batch_size)
    wanted = judge.float_score - (abs(judge.float_score) * max_drop if relative else max_drop)
    placed, result, score = _search(run, judge, wanted, options.price)
    run.note(placed)
    _note_kept(run, placed, quantizer.record)
    run.verify(result)
    quantizer.record.facts["bytes_after"] = result.size()
    quantizer.record.facts |= {"accuracy_float": judge.float_score, "accuracy": score, "accuracy_wanted": wanted}
    if score < wanted:
        reason = "not even the model with hardly anything in integers is as accurate as asked for"
        quantizer.record.note("accuracy-missed", reason, score=score, wanted=wanted)
    if not placed.layers:
        _note_all_float(quantizer.record, wanted)
    result.sign(quantizer.config, quantizer.record)
    warn_of_calibration(quantizer.record)
    made = deliver(quantizer, result)
    if not placed.layers:
        warnings.warn(quantizer.record.lines[0]["reason"], NothingQuantizedWarning, stacklevel=2)
    warn_of_result(quantizer.record)
    return made


def _calibrated(
    quantizer: ModelQuantizer, view: Any, dataset: Dataset, samples: int, options: Options, progress: Progress
) -> Calibrated:
    probe(view, dataset, options.batch_size)
    plan = make_plan(view, quantizer.config)
    if not plan.static:
        raise UsageError("no static activations to choose among", where="preset", expected="a preset such as w8a8")
    refuse_weights(view, plan)
    quantizer.record.facts |= facts_of(plan)
    taken = calibration_subset(view, dataset, samples, by_item=True, batch_size=options.batch_size)
    places, in_order = ItemPlaces(), items_in_order(taken, options.batch_size)

    def items(label: str) -> Iterator[Any]:
        fed = places.inputs(taken, view.signature(), options.batch_size)
        return progress.track(fed, total=samples, label=label)

    with places.told():
        run = calibrate(
            view, plan, items, record=quantizer.record, options=options, samples=samples, in_order=in_order, each=True
        )
    report_subset(taken, quantizer.record, calibrates=True)
    return run


class _Judge:
    """Scores models on the validation data."""

    def __init__(self, view: Any, dataset: Dataset, function: ValidationFn | None, batch_size: int):
        self._view, self._dataset, self._function, self._batch_size = view, dataset, function, batch_size
        self._places = ItemPlaces()
        self.float_score = 1.0 if function is None else self.score(view, "the float model")

    def score(self, view: Any, name: str) -> float:
        """How good a model is, which an error calls by its name.

        Raises:
            UsageError: the function returns no finite number.
        """
        with self._places.told():
            if self._function is None:
                found = nearness(self._view.answers(self._items()), view.answers(self._items()))
                if not isfinite(found["error"]):
                    raise _no_answers(found["worst_item"])
                agreement = found["agreement"]
                return float(1 - found["error"] if agreement is None else agreement)
            return _number(self._function(view.native(), self._items()), name)

    def _items(self) -> Iterable[Any]:
        return self._places.inputs(self._dataset, self._view.signature(), self._batch_size)


def _no_answers(item: int) -> DataError:
    return DataError(
        "the answers to a validation sample are not finite",
        code="not-finite",
        where=f"item {item}",
        expected="finite answers of the float model and of the quantized one",
        try_="run the float model on that sample, and look at how it was made",
    )


def _number(said: Any, name: str) -> float:
    """The score in what a validation function returns; nothing is above or below what is not a number."""
    first = said[0] if isinstance(said, tuple | list) and said else said
    try:
        number = nan if isinstance(first, str | bytes) else float(first)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several values
        number = nan
    if not isfinite(number):
        raise UsageError(
            f"validation_fn returned {reprlib.repr(said)} for {name}",
            where="validation_fn",
            expected="a finite number, the higher the better, or a tuple that begins with one",
            try_="call it by hand: validation_fn(model, list(Dataset(validation_data).inputs(model)))",
        )
    return number


def _search(run: Calibrated, judge: _Judge, wanted: float, start: float) -> tuple[Placed, Any, float]:
    """The highest price whose model is good enough, by halves: the lower the price, the more stays in float."""
    prices = [start, *(price for price in _PRICES if price < start)]
    tried: dict[int, tuple[Placed, Any, float]] = {}

    def attempt(index: int) -> bool:
        placed = run.place(prices[index])
        result = run.write(placed)
        tried[index] = (
            placed,
            result,
            judge.score(result, f"a quantized model ({len(placed.layers)} layers in integers)"),
        )
        return tried[index][2] >= wanted

    if attempt(0):
        return tried[0]
    low, high = 0, len(prices) - 1  # not good enough at `low`
    if not attempt(high):
        return tried[high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attempt(middle) else (middle, high)
    return tried[high]


def _note_kept(run: Calibrated, placed: Placed, record: Record) -> None:
    """What each layer costs that would be in integers if only time counted."""
    free = run.place(inf)
    sizes = {w.point.layer: w.bytes_before - w.bytes_after for w in run.plan.weights}
    for layer in sorted(free.layers - placed.layers):
        record.note(
            "kept-for-accuracy", placed.kept.get(layer, ""), where=layer, bytes=sizes.get(layer, 0),
            time_share=free.saved.get(layer, 0.0),
        )  # fmt: skip


def _note_all_float(record: Record, wanted: float) -> None:
    """Say first that no layer is left in integers."""
    stored = sum(line["what"] == "stored" for line in record.lines)
    codes = f" ({stored} weight{'' if stored == 1 else 's'} stored as int8 codes)" if stored else ""
    record.note(
        "nothing-quantized",
        f"every layer stays in float{codes}: with layers in integers the accuracy is below {wanted:.4g}, or no time is "
        "saved; try a larger max_drop, more calibration samples, or compress_weights(model, mode='int8_asym')",
    )
    record.lines.insert(0, record.lines.pop())


def _relative(max_drop: float, drop_type: str) -> bool:
    if drop_type not in ("absolute", "relative"):
        raise UsageError(f"drop_type={drop_type!r}", where="drop_type", expected="'absolute' or 'relative'")
    if isinstance(max_drop, bool) or not isinstance(max_drop, int | float) or not 0 <= max_drop < inf:
        raise UsageError(f"max_drop={max_drop!r}", where="max_drop", expected="a number from 0 up")
    return drop_type == "relative"


def _inputs(data: Any, model: Any, view: ModelView, options: Options) -> Dataset:
    """Data as inputs of the model, tokenized where it is text."""
    return as_inputs(
        data, model, view.signature(), seqlen=options.seqlen, pack=options.pack, column=options.text_column
    )
