# SPDX-License-Identifier: Apache-2.0
"""`compress_checkpoint`: the weights of a Hugging Face folder, file to file, without data and without the model.

Only config.json builds something: a model of stand-ins, which is planned for, and laid out as a checkpoint, like any
other. Then the files are gone through once: tensors are read, settled and written in pieces of rows, so that memory
follows a piece, and time the disk. What is written is what `compress_weights` and `export` write, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.findings import Progress
from fewbit.engine.checkpoint_names import NeedsModel
from fewbit.engine.checkpoint_run import CheckpointRun, SecondPass
from fewbit.engine.checkpoint_skeleton import empty_view
from fewbit.engine.compression import compression
from fewbit.engine.formats import format_name, refuse_formats
from fewbit.engine.joining import by_the_first
from fewbit.engine.planning import make_plan
from fewbit.engine.scoping import ignored
from fewbit.engine.staging import check_target, made_whole, place
from fewbit.errors import UsageError, nearest
from fewbit.model.view import ModelView
from fewbit.modules.checkpoint_files import find_tensors
from fewbit.schemes.modes import CompressWeightsMode
from fewbit.schemes.scope import IgnoredScope

_ALGORITHMS = ("rtn", "scale_search")


@by_the_first
def compress_checkpoint(
    folder: str | Path,
    output: str | Path,
    *,
    mode: str | CompressWeightsMode,
    group_size: int | None = None,
    algorithm: str | None = None,
    format: str = "compressed_tensors",
    ignored_scope: IgnoredScope | Callable[[ModelView], tuple[str, ...]] | None = None,
    all_layers: bool = False,
    overwrite: bool = False,
    shard_bytes: int = 4 << 30,
    progress: Progress | None = None,
) -> Path:
    """Compress the weights of a checkpoint without loading its model: memory follows a piece of a tensor.

    Args:
        folder: a Hugging Face folder: config.json and model.safetensors, or several files with an index.
        output: a new or empty folder.
        mode: what weights become: `int8_asym`, `int4_sym`, `mxfp4` ….
        group_size: elements that share a scale; the mode's own by default.
        algorithm: how codes are found: `scale_search`, which is the default, or `rtn`, which is several times faster.
        format: a checkpoint format: `compressed_tensors`, `gptq` or `awq`.
        ignored_scope: layers that stay in float; or what says them of a view, as names, globs or `re:` expressions.
        all_layers: embeddings and the last layer too; below eight bits they are `int8_asym` otherwise.
        overwrite: replace an earlier export.
        shard_bytes: the most bytes of tensors in one file.
        progress: shows how far it is.

    Returns:
        The output folder.

    Raises:
        UsageError: no such checkpoint, an algorithm that needs data, weights that the format cannot hold, a place that
            is taken.
        NeedsModel: a format or files that only the opened model can be compressed with (it is a `UsageError`).
        DataError: files that are damaged, weights that are not finite.
    """
    source, target, name = place(folder), place(output), format_name(format)
    exporter = registry.get("exporters", name)
    _refuse(name, exporter, algorithm, shard_bytes)
    check_target(target, overwrite=overwrite)
    tensors = find_tensors(source)
    known = SecondPass({}, {})
    while True:
        view = empty_view(source, tensors)
        scope = ignored_scope(view) if callable(ignored_scope) else ignored(ignored_scope, view)
        config = compression(
            view, mode, group_size=group_size, algorithm=algorithm, all_layers=all_layers, exclude=scope
        )
        plan = make_plan(view, config)
        refuse_formats(view, plan, [name])
        run = CheckpointRun(view, plan, tensors, known, progress or Progress())
        try:
            with made_whole(target, overwrite=overwrite) as staged:
                run.write(staged, name, shard_bytes)
            return target
        except SecondPass as told:  # what only values can tell; the next pass begins with it
            known = SecondPass({**known.narrow, **told.narrow}, {**known.floats, **told.floats})


def goes_file_to_file(model: Any, formats: Sequence[str], algorithm: str | None) -> bool:
    """Whether a model without data, and what is wanted of it, look like work for `compress_checkpoint`."""
    if not isinstance(model, str | Path) or len(formats) != 1:
        return False
    able = hasattr(registry.get("exporters", format_name(formats[0])), "lay_out")
    return able and algorithm in (None, "auto", *_ALGORITHMS) and (place(model) / "config.json").is_file()


def _refuse(name: str, exporter: Any, algorithm: str | None, shard_bytes: int) -> None:
    if not hasattr(exporter, "lay_out"):
        able = [each for each in registry.names("exporters") if hasattr(registry.get("exporters", each), "lay_out")]
        raise NeedsModel(f"the format {name!r} is not written file to file", expected=f"one of {', '.join(able)}")
    if algorithm not in (None, "auto", *_ALGORITHMS):
        raise UsageError(
            f"algorithm={algorithm!r} without data", where="algorithm", expected=nearest(str(algorithm), _ALGORITHMS)
        )
    if shard_bytes < 1:
        raise UsageError(f"shard_bytes={shard_bytes}", expected="a number of bytes, such as 4 << 30")
