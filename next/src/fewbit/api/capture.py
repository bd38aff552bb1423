# SPDX-License-Identifier: Apache-2.0
"""The verb `capture`: record what a PyTorch model receives as `.npz` samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from fewbit import registry
from fewbit.api.data import DataOptions, open_dataset
from fewbit.api.options import checked
from fewbit.backends import find_backend
from fewbit.data.capture.recorder import Recorder, evaluating
from fewbit.data.capture.sample_folder import SampleFolder, check_sample_folder, sample_folder
from fewbit.data.inputs import Batch, InputAdapter
from fewbit.data.inputs.modules import call_arguments
from fewbit.data.user_code import parse_reference
from fewbit.errors import FewbitError, ModelError, UsageError, plural, require
from fewbit.progress import Run, make_progress


@checked("capture")
@contextmanager
def capture(
    model: Any,
    output: str | Path,
    *,
    names: str | Path | Sequence[str] | None = None,
    samples: int | None = None,
    overwrite: bool = False,
) -> Iterator[SampleFolder]:
    """Record what a model receives within a `with` block, one `.npz` file per sample, without batch axis.

        with capture(model, "data", samples=300) as recording:
            for batch in loader:
                model(**batch)
                if recording.full:
                    break

    Args:
        model: a `torch.nn.Module`, called as always; it is not changed.
        output: a new folder. It appears when the block ends without error; until then samples are in `OUTPUT.partial`.
        names: of the inputs, in order, or the exported model to take them from; those of `forward`'s parameters by
            default.
        samples: how many to keep: the first ones; all by default.
        overwrite: replace an earlier recording; files of others are never touched.
    """
    with sample_folder(Path(output), limit=samples, overwrite=overwrite) as folder:
        recorder = Recorder(model, folder.add, _input_names(names))
        folder.manifest |= {"model": type(model).__name__, "left_out": recorder.left_out}
        with recorder:
            yield folder


@checked("capture")
def capture_dataset(
    model: str,
    data: Any,
    output: str | Path,
    *,
    names: str | Path | Sequence[str] | None = None,
    batch_size: int = 1,
    device: str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
    progress: Any = None,
    **options: Unpack[DataOptions],
) -> dict[str, Any]:
    """Run a dataset through a model and record what arrives there; returns the manifest.

    Args as in `capture` and `open_dataset`, but `model` is `FILE.py:FN`, a function that builds a `torch.nn.Module`.
    """
    inputs = [Path(data)] if isinstance(data, str | Path) and Path(data).exists() else []
    check_sample_folder(Path(output), overwrite=overwrite, inputs=inputs)
    names = _input_names(names)
    dataset = open_dataset(data, **options)
    run = Run(make_progress(progress))
    try:
        with run.phase("load"):
            module, info = _load(model, device, threads)
        adapter = InputAdapter(info, options, report=dataset.report)
        adapter.first(dataset)
        run.line(f"  data     {dataset.report.source}: {plural(len(dataset), 'sample')}; {adapter.describe()}")
        where = next((parameter.device for parameter in module.parameters()), "cpu")
        recording = capture(module, output, names=names, overwrite=overwrite)
        with run.phase("write", len(dataset), "sample") as bar, recording as folder, evaluating(module):
            for batch in adapter.batches(dataset, batch_size):
                args, kwargs = call_arguments(batch.inputs, info)
                _call(
                    module,
                    [_moved(arg, where) for arg in args],
                    {k: _moved(arg, where) for k, arg in kwargs.items()},
                    batch,
                )
                bar.advance(len(batch.locations))
    finally:
        run.close()
    return folder.manifest


def _input_names(names: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Names as they are given, or those of the inputs of a model file."""
    items = [str(names)] if isinstance(names, str | Path) else [str(name) for name in names or ()]
    suffixes = [suffix for backend in registry.members("backends").values() for suffix in backend.suffixes]
    if len(items) == 1 and items[0].lower().endswith(tuple(suffixes)):
        items = [tensor.name for tensor in find_backend(items[0]).inspect(items[0]).inputs]
    return tuple(items) or None


def _load(reference: str, device: str, threads: int | None) -> tuple[Any, Any]:
    """The module, and what it takes: `forward`'s signature and the files next to the Python file."""
    torch = require("torch", extra="torch", purpose="PyTorch models")
    from fewbit.data.loading.devices import choose_device

    if parse_reference(reference) is None:
        raise UsageError(
            f"{reference!r} names no Python object", code="reference", param="model",
            expected="FILE.py:FN, a function that builds a torch.nn.Module", hint="{model=my_code.py:my_function}",
        )  # fmt: skip
    if threads is not None:
        torch.set_num_threads(threads)
    backend = find_backend(reference)
    info, module = backend.inspect(reference), backend.load(reference).for_user()
    if device != "auto":
        module.to(choose_device(device, required=True).device)
    return module, info


def _call(module: Any, args: list[Any], kwargs: dict[str, Any], batch: Batch) -> None:
    """Run the user's model; what it raises is an error of the model, with the sample it was given."""
    try:
        module(*args, **kwargs)
    except FewbitError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {list(getattr(value, 'shape', ()))}" for name, value in batch.inputs.items())
        raise ModelError(
            f"the model fails with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            code="model-failed", where=f"{batch.locations[0]}, given {shapes}",
            expected="inputs as the model takes them",
            hint="{image_size}, {mean} and {std} for images, or {transform=FILE.py:FN}",
        ) from error  # fmt: skip


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if hasattr(value, "to") else value
