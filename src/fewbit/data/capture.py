# SPDX-License-Identifier: Apache-2.0
"""`capture`: what a PyTorch module really receives, as `.npz` samples on disk.

    with capture(model, "data", names="model.onnx", max_samples=300) as cap:
        for batch in loader:
            model(**batch)
            if cap.full:
                break

The live model is hooked, never wrapped: its class, parameter names and outputs stay as they are, and after the
block, an exception included, it is as it was before. Files: `input<number>.npz`, one sample each without its
batch axis, and `manifest.json`. With `outputs=True`: `sample-inputs/` and `sample-outputs/`. With `layers=[…]`:
one such folder a layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from fewbit.data.capturing.batch_axis import Declared
from fewbit.data.capturing.listening import Listener
from fewbit.data.capturing.manifest import read_manifest
from fewbit.data.capturing.modes import evaluating, modes_kept
from fewbit.data.capturing.recorder import Recorder, Settings
from fewbit.data.capturing.sample_files import SampleFiles
from fewbit.errors import DataError, UsageError, nearest


class Capture:
    """A running capture; see `capture`.

    Attributes:
        manifest: the content of `manifest.json` once the block has ended; with `layers`, one by layer name.
    """

    def __init__(
        self,
        model: Any,
        folder: str | Path,
        settings: Settings,
        layers: Sequence[str],
        run_forward: bool,
        evaluate: bool,
    ):
        self.folder = Path(folder)
        self.manifest: dict[str, Any] = {}
        self._model, self._settings = model, settings
        self._modules = _find(model, layers)
        self._by_layer = bool(layers)
        self._run_forward, self._evaluate = run_forward, evaluate
        self._recorders: dict[str, Recorder] = {}
        self._held = contextlib.ExitStack()

    @property
    def count(self) -> int:
        """Samples kept so far in this run, of all layers together."""
        return sum(recorder.count for recorder in self._recorders.values())

    @property
    def full(self) -> bool:
        """`max_samples` are there: nothing more will be written, the loop may stop."""
        return bool(self._recorders) and all(recorder.full for recorder in self._recorders.values())

    @property
    def samples(self) -> SampleFiles:
        """The samples of this run, read from disk when asked for."""
        return SampleFiles(lambda: [path for recorder in self._recorders.values() for path in recorder.folder.paths()])

    def __enter__(self) -> Capture:
        with contextlib.ExitStack() as held:
            held.enter_context(modes_kept(self._model, evaluate=self._evaluate))
            if self._by_layer:
                self._prepare_folder_of_layers()
            for name, module in self._modules.items():
                folder = self.folder / quote(name, safe="") if self._by_layer else self.folder
                self._recorders[name] = Recorder(module, folder, self._settings, name or None)
            for name, recorder in self._recorders.items():
                listener = Listener(self._modules[name], recorder, run_forward=self._run_forward)
                held.callback(listener.detach)
                listener.attach()
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()
        problem = error or self._nothing_captured()
        with contextlib.suppress(OSError, DataError) if error else contextlib.nullcontext():
            manifests = {name: recorder.finish(problem) for name, recorder in self._recorders.items()}
            self.manifest = manifests if self._by_layer else manifests[""]
        if error is None and problem is not None:
            raise problem

    def _nothing_captured(self) -> DataError | None:
        """A capture that got nothing is a mistake somewhere; it is told, not left as an empty folder."""
        empty = [name for name, recorder in self._recorders.items() if recorder.count == 0 and not recorder.skipped]
        if not empty:
            return None
        calls, failed = (sum(getattr(self._recorders[name], what) for name in empty) for what in ("calls", "failed"))
        return DataError(
            f"no sample was captured: {calls} calls arrived, {failed} of them ended in an error",
            where=", ".join(name for name in empty if name) or type(self._model).__name__,
            expected="at least one call of the module within the block",
            try_="call model(...), not model.forward(...); look whether the loader is empty",
        )

    def _prepare_folder_of_layers(self) -> None:
        """Layers have folders of their own; what an earlier run left for other layers must not stay unnoticed."""
        if self._settings.append or not self.folder.is_dir():
            return
        mine = {quote(name, safe="") for name in self._modules}
        others = sorted(path.name for path in self.folder.iterdir() if path.name not in mine)
        stale = [name for name in others if read_manifest(self.folder / name) is not None]
        if stale or (others and not self._settings.overwrite):
            raise UsageError(
                f"the folder holds something else: {', '.join((stale or others)[:4])}",
                where=self.folder,
                expected="an empty or new folder, or the same layers and overwrite=True",
                try_="another folder",
            )


def capture(
    model: Any,
    folder: str | Path,
    *,
    names: Any = None,
    max_samples: int | None = None,
    batch_dim: Declared | Mapping[str, Declared] = 0,
    layers: Sequence[str] | None = None,
    outputs: bool = False,
    seed: int | None = None,
    unique: bool = False,
    bfloat16: str = "float32",
    overwrite: bool = False,
    append: bool = False,
    run_forward: bool = True,
    evaluate: bool = False,
) -> Capture:
    """Write what a model receives within a `with` block into a folder, one `.npz` a sample.

    Args:
        model: a `torch.nn.Module`, called as usual within the block.
        folder: a new or empty folder.
        names: how the inputs are called on disk. `None`: as `forward` calls its parameters, nested values by dotted
            path (`past_key_values.0.key`). A path to the exported model (`"model.onnx"`): its names, order and dtypes.
            A list: these, in order. A dict: renames.
        max_samples: stop writing after so many; `cap.full` then says so.
        batch_dim: the axis that counts samples; or a dict by input name, with an axis, `None` (no batch axis: copied
            whole into every sample) or `"list"` (a list with one entry a sample).
        layers: capture what these submodules receive instead; names of `named_modules()`, patterns allowed.
        outputs: write what the model returns, too.
        seed: keep an even draw of `max_samples` from everything seen instead of the first ones.
        unique: leave out samples that repeat an earlier one.
        bfloat16: kept as `"float32"`, or as the bits in `"uint16"`; the manifest says which.
        overwrite: replace an earlier capture in that folder; other files in it are never removed.
        append: go on after an earlier capture in that folder; `max_samples` counts the new ones.
        run_forward: `False` saves the computation: calls only record and return `None`.
        evaluate: switch to evaluation mode for the time of the block.

    Raises:
        UsageError: the folder is not empty, a layer does not exist, options contradict.
        DataError: a call without tensors, inputs that disagree about the number of samples, or nothing captured.
    """
    if not all(hasattr(model, name) for name in ("register_forward_pre_hook", "named_modules", "forward")):
        raise UsageError(
            f"capture takes a torch.nn.Module, not a {type(model).__name__}",
            try_="pass the PyTorch model the data is meant for; names= takes its ONNX export",
        )
    if isinstance(layers, str):
        layers = [layers]
    if not run_forward and (outputs or layers):
        raise UsageError(
            "run_forward=False never runs the model, so there are no layer inputs and no outputs to capture",
            expected="run_forward=True with layers= or outputs=",
        )
    settings = Settings(names, max_samples, batch_dim, outputs, seed, unique, bfloat16, overwrite, append)
    return Capture(model, folder, settings, layers or (), run_forward, evaluate)


def capture_dataset(
    model: Any,
    dataset_inputs: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
    folder: str | Path,
    **options: Any,
) -> dict[str, Any]:
    """Run a model over ready inputs and capture them; in evaluation mode, without gradients.

    Args:
        model: a `torch.nn.Module`.
        dataset_inputs: `(args, kwargs)` for each call.
        folder: where the samples go.
        options: those of `capture`.

    Returns:
        The manifest.
    """
    with evaluating(model), capture(model, folder, **options) as cap:
        for args, kwargs in dataset_inputs:
            model(*args, **kwargs)
            if cap.full:
                break
    return cap.manifest


def _find(model: Any, layers: Sequence[str]) -> dict[str, Any]:
    """The modules to listen to by name; the model itself has the empty name."""
    if not layers:
        return {"": model}
    modules = dict(model.named_modules())
    found: dict[str, Any] = {}
    for wanted in layers:
        matches = [wanted] if wanted in modules else [name for name in modules if name and fnmatchcase(name, wanted)]
        if not matches:
            raise UsageError(f"the model has no layer {wanted!r}", expected=nearest(wanted, [n for n in modules if n]))
        found |= {name: modules[name] for name in matches}
    return found
