# SPDX-License-Identifier: Apache-2.0
"""What a verb returns: the kind of model it was given, or the path it was written to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewbit.engine.delivering import export
from fewbit.engine.formats import format_name, refuse_formats
from fewbit.engine.joining import by_the_first
from fewbit.engine.journal import forget
from fewbit.engine.options import Options
from fewbit.engine.plan import Plan
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.engine.staging import check_target
from fewbit.errors import FewbitError, UsageError, nearest
from fewbit.model.view import ModelView
from fewbit.record import Record

_MODULES = ("torch",)
_OWN = "safetensors"


class Delivery:
    """Where a result goes; a place that cannot be had is refused when this is made, before any work.

    Args:
        view: of the model that was given.
        output: a folder for a module, a file for a graph; none to return the model itself.
        options: of the run.
        overwrite: replace what fewbit wrote there before, and nothing else.
        freeze: choose kernels for the layers of a module.
        factory: `"file.py:function"` that builds the module, which its export then names.
        formats: what a module is written as; with several each has a folder of its name in the output.

    Raises:
        UsageError: a place that is taken, a format that there is not, or a target that is not for this kind of model.
    """

    def __init__(
        self,
        view: ModelView,
        output: str | Path | None,
        options: Options,
        *,
        overwrite: bool = False,
        freeze: bool = True,
        factory: str | None = None,
        formats: Sequence[str] = (),
    ):
        self._file = "place" in view.can
        self._output = None if output is None else Path(output).expanduser()
        self._options, self._overwrite, self._freeze, self._factory = options, overwrite, freeze, factory
        if not self._file and options.target not in (None, *_MODULES):
            raise UsageError(
                f"target {options.target!r} for a PyTorch module", expected=nearest(str(options.target), _MODULES)
            )
        self._formats = tuple(dict.fromkeys(format_name(name) for name in formats)) or (_OWN,)
        if formats and (self._file or self._output is None):
            raise UsageError(
                f"format {', '.join(formats)} for {'an ONNX model' if self._file else 'a model that is not written'}",
                where="format",
                expected="a PyTorch module and an output folder",
            )
        if self._output is None:
            return
        if self._file:
            _check_file(self._output, overwrite)
        for place in () if self._file else self._places():
            check_target(place, overwrite=overwrite)

    def _places(self, within: Path | None = None) -> dict[Path, str]:
        """Where each format goes, in the output or in another folder."""
        root = within or self._output
        assert root is not None
        if len(self._formats) == 1:
            return {root: self._formats[0]}
        return {root / name: name for name in self._formats}

    def _write(self, model: Any) -> None:
        """Export all formats, beside what is kept until all is done, and move them: who is killed leaves all or none.

        An output that is there already may be on another disk than what is beside it; formats go there one by one.
        """
        assert self._output is not None and self.work is not None
        apart = self.work / "result" if self.work.exists() and not self._output.exists() else None
        if apart is not None:
            forget(apart)
        for place, name in self._places(apart).items():
            more = {"factory": self._factory} if name == _OWN else {}
            export(model, place, format=name, overwrite=self._overwrite, **more)
        if apart is not None:
            check_target(self._output, overwrite=self._overwrite)  # an hour may have passed
            apart.rename(self._output)
        forget(self.work)

    def refuse(self, view: ModelView, plan: Plan) -> None:
        """Refuse a plan that a format cannot hold, before any work, with every reason."""
        if not self._file:
            refuse_formats(view, plan, self._formats)

    @property
    def work(self) -> Path | None:
        """Where finished weights are kept until all are, beside the output; none if there is no output."""
        if self._output is None or self._file:
            return None
        place = self._output.absolute()
        return place.with_name(f".{place.name}.work")

    @property
    def is_file(self) -> bool:
        """Whether the model is one file, with its record beside it, and not a folder."""
        return self._file

    def __call__(self, quantizer: ModelQuantizer, result: Any) -> Any:
        """Hand a result over; of several workers the first one writes it when all are there, and the others wait."""
        if self._output is None:
            return self._handed_over(quantizer, result)
        # Not before all have called it: whether the output may be had is what each of them looks at.
        return by_the_first(self._handed_over)(quantizer, result)

    def _handed_over(self, quantizer: ModelQuantizer, result: Any) -> Any:
        if not self._file:
            model = result.native()
            if self._freeze:
                model = quantizer.freeze(model, inplace=True, exact=self._options.exact)
            model.fewbit_record = quantizer.record
            if self._output is None:
                return model
            self._write(model)
            return self._output
        if "executed" not in quantizer.record.facts:  # what was placed has been looked at
            quantizer.record.facts |= {"executed": result.executed(), "bytes_after": result.size()}
        _name_as_the_model_does(quantizer.record.facts["executed"], result)
        if self._output is None:
            return result.native()
        _check_file(self._output, self._overwrite)  # an hour may have passed
        # The record first: it says that the model is fewbit's, so what is killed in between can be overwritten.
        beside = record_of(self._output)
        known = beside.exists()
        quantizer.record.save(beside)
        try:
            result.save(self._output, overwrite=self._overwrite)
        except BaseException:
            if not known:
                beside.unlink(missing_ok=True)
            raise
        return self._output


def _name_as_the_model_does(executed: dict[str, Any], result: ModelView) -> None:
    """Count what multiplies floats by the operators of the model too, which the runtime may have made others of.

    Those are the ones that `IgnoredScope(types=…)` knows.
    """
    if nodes := executed.get("float_nodes"):
        own = result.layers()
        counted = Counter(own.get(name, (operator,))[0] for name, operator in nodes)
        executed["float_operators"] = dict(sorted(counted.items()))


def record_of(file: Path) -> Path:
    """Where the record of a model lies that is one file.

    >>> record_of(Path("small.onnx")).name
    'small.onnx.record.json'
    """
    return file.with_name(f"{file.name}.record.json")


def _check_file(file: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or would have to be taken from the user.

    What fewbit wrote has its record beside it, so the float model is never overwritten.
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {str(folder)!r}", where=file, try_="make it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {str(folder)!r} may not be written to", where=file, try_="another one")
    if file.is_dir():
        raise UsageError(f"{str(file)!r} is a folder", where=file, expected="a new file")
    taken = next((place for place in (file, record_of(file)) if os.path.lexists(place)), None)
    if taken is None:
        return
    earlier = _is_record(record_of(file))
    if not overwrite:
        raise UsageError(
            f"{str(taken)!r} is there already",
            where=file,
            expected="a new file",
            try_="another name" + (", or delete it first; on the command line, --overwrite" if earlier else ""),
        )
    if not earlier:
        raise UsageError(
            f"{str(taken)!r} is not an earlier result",
            where=file,
            expected=f"a new file, or one with its {record_of(file).name} beside it, which fewbit wrote",
            try_="another name",
        )


def _is_record(path: Path) -> bool:
    try:
        return path.is_file() and Record.from_json(path.read_bytes()).verb == "quantize"
    except (OSError, FewbitError):
        return False
