# SPDX-License-Identifier: Apache-2.0
"""What a verb returns: the kind of model it was given, or the path it was written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.engine.delivering import check_target, export
from fewbit.engine.options import Options
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.errors import UsageError, nearest
from fewbit.model.view import ModelView

_MODULES = ("torch",)


class Delivery:
    """Where a result goes; a place that cannot be had is refused when this is made, before any work.

    Args:
        view: of the model that was given.
        output: a folder for a module, a file for a graph; none to return the model itself.
        options: of the run.

    Raises:
        UsageError: a place that is taken, or a target that is not for this kind of model.
    """

    def __init__(self, view: ModelView, output: str | Path | None, options: Options):
        self._file = "place" in view.can
        self._output = None if output is None else Path(output).expanduser()
        self._exact = options.exact
        if not self._file and options.target not in (None, *_MODULES):
            raise UsageError(
                f"target {options.target!r} for a PyTorch module", expected=nearest(str(options.target), _MODULES)
            )
        if self._output is None:
            return
        if not self._file:
            check_target(self._output, overwrite=False)
        elif self._output.exists():
            raise UsageError(
                f"{str(self._output)!r} is there already",
                where=self._output,
                expected="a new file",
                try_="another name",
            )
        elif not self._output.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {str(self._output.parent)!r}", where=self._output, try_="make it")

    def __call__(self, quantizer: ModelQuantizer, result: Any) -> Any:
        """Hand a result over."""
        if not self._file:
            frozen = quantizer.freeze(result.native(), inplace=True, exact=self._exact)
            frozen.fewbit_record = quantizer.record
            return frozen if self._output is None else export(frozen, self._output)
        if self._output is None:
            return result.native()
        quantizer.record.save(self._output.with_name(f"{self._output.name}.record.json"))
        return result.save(self._output)
