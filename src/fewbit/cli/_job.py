# SPDX-License-Identifier: Apache-2.0
"""The way of a command that quantizes: open, check, quantize, write, say what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbit import registry
from fewbit.cli import _choice, _output, _summary, _written
from fewbit.cli._calibration import Calibration
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.engine.options import Options
    from fewbit.model.view import ModelView
    from fewbit.record import Record


def carry_out(
    model: str,
    factory: str | None,
    configure: Callable[[ModelView], Any],
    given: Calibration,
    options: Options,
    out: Path,
    *,
    freeze: bool,
    overwrite: bool,
    as_json: bool,
    formats: Sequence[str] = (),
    statistics: Path | None = None,
    opened: str | None = None,
) -> int:
    """Quantize the model that a command line names, write it, and print what became of it.

    Args:
        model: as the command line names it.
        factory: that builds it.
        configure: the configuration for a view of the model.
        given: the data.
        options: of the run.
        out: where it goes.
        freeze: choose kernels for a module.
        overwrite: replace an earlier result.
        as_json: print the record.
        formats: what a module is written as.
        statistics: a folder for second moments.
        opened: why the files of the model were not turned into others without opening it, if they might have been.

    Raises:
        UsageError: something that cannot be, before the work starts.
        DataError: a model or data that cannot be used.
    """
    from fewbit.engine.delivery import Delivery, record_of
    from fewbit.engine.planning import make_plan
    from fewbit.engine.quantizer import ModelQuantizer
    from fewbit.engine.run import view_of

    dataset = given.open()
    view = view_of(_choice.network(model, factory))
    named = factory or (model if registry.is_reference(model) else None)
    deliver = Delivery(view, out, options, overwrite=overwrite, freeze=freeze, factory=named, formats=formats)
    quantizer = ModelQuantizer(configure(view))
    plan = make_plan(view, quantizer.config)
    deliver.refuse(view, plan)
    if dataset is None and plan.static:
        raise UsageError(
            f"{len(plan.static)} activations need calibration data, such as {plan.static[0].point.name}",
            where="--data",
            expected="a path, or file.py:function",
            try_="--data PATH, or a preset that finds scales in each call: --preset w8a8_dynamic",
        )
    if dataset is not None:
        dataset = given.as_inputs(dataset, model, view.signature())
    with _output.TerminalProgress() as progress:
        result = quantizer.quantize_view(
            view,
            dataset,
            inplace=True,
            samples=given.samples,
            progress=progress,
            options=options,
            work=deliver.work,
            statistics=statistics,
            refuse=partial(deliver.refuse, view),
            checked=True,
        )
        quantizer.record.facts |= {"model": model, "data": given.data}
        if opened is not None:
            quantizer.record.note("model-opened", f"not compressed file to file: {opened}")
        deliver(quantizer, result)
    if deliver.is_file:
        after = f"per-layer report: {record_of(out)}"
    else:
        after = f"as {', '.join(formats)}" if formats else _loading(out, model, named)
    return tell(quantizer.record, out, after, as_json=as_json)


def tell(record: Record, out: Path, after: str, *, as_json: bool) -> int:
    """Print what became of a model, for people or as JSON; the exit code. Of several workers the first one does.

    The exit code is 1 if the result was measured and does not work.
    """
    from fewbit.engine.joining import is_first
    from fewbit.engine.measuring import is_broken

    if not is_first():
        return 0
    if as_json:
        _output.print_json({"output": str(out), **vars(record)})
    else:
        for line in (*_summary.lines(record), *_written.lines(out.expanduser()), f"in {out}; {after}"):
            _output.stdout().print(line, markup=False, style="bold red" if line.startswith(_summary.BROKEN) else None)
    return 1 if is_broken(record) else 0


def _loading(out: Path, model: str, factory: str | None) -> str:
    """How to read the folder."""
    if factory is not None:
        return f"load it with fewbit.load({str(out)!r}, factory={factory!r})"
    return f"load it with fewbit.load({str(out)!r}{'' if Path(model).is_dir() else f', {model!r}'})"
