# SPDX-License-Identifier: Apache-2.0
"""`NumpyExportWrapper`: run a model over a loader, then `save()` everything it was given as `.npz` samples."""

from __future__ import annotations

import functools
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewbit.data.capturing import manifest
from fewbit.data.capturing.batch_axis import Declared
from fewbit.data.capturing.binding import Binder, innermost
from fewbit.data.capturing.calling import on_device_of, spread
from fewbit.data.capturing.listening import Listener
from fewbit.data.capturing.modes import evaluating
from fewbit.data.capturing.recorder import Recorder, Settings
from fewbit.data.capturing.sample_files import SampleFiles
from fewbit.data.capturing.sample_folder import SampleFolder
from fewbit.errors import DataError, UsageError

_OWN = ("model", "numpy_data", "_recorder", "_binder", "_finalizer", "__weakref__")


class NumpyExportWrapper:
    """A stand-in for a model that remembers what it was called with.

    It is no module itself: parameters keep their names, and every other attribute is the model's own. Calls run in
    evaluation mode and without gradients, and leave the model's training flags as they were. Inputs are moved to the
    model's device; a dict of its parameters is spread over them. Samples wait in a temporary folder, not in memory.

        model = NumpyExportWrapper(model)
        for data in loader:
            model(data[0])
        model.save()

    Args:
        model: a `torch.nn.Module`.
        names, max_samples, batch_dim, seed, unique, bfloat16: as in `capture`.

    Attributes:
        model: the model.
        numpy_data: the samples so far, a sequence of dicts of arrays, each read from disk when asked for.
    """

    def __init__(
        self,
        model: Any,
        *,
        names: Any = None,
        max_samples: int | None = None,
        batch_dim: Declared | Mapping[str, Declared] = 0,
        seed: int | None = None,
        unique: bool = False,
        bfloat16: str = "float32",
    ):
        if not hasattr(model, "register_forward_pre_hook"):
            raise UsageError(
                f"NumpyExportWrapper takes a torch.nn.Module, not a {type(model).__name__}",
                expected="a module that takes forward hooks",
                try_="wrap the model before it is scripted or exported",
            )
        settings = Settings(names, max_samples, batch_dim, False, seed, unique, bfloat16)
        folder = tempfile.mkdtemp(prefix="fewbit-capture-")
        self.model = model
        self._finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._binder = Binder(innermost(model).forward)
        self._recorder = Recorder(model, folder, settings)
        self.numpy_data = SampleFiles(self._recorder.folder.paths)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model and remember what it received."""
        args, kwargs = on_device_of(self.model, *spread(self._binder, args, kwargs))
        listener = Listener(self.model, self._recorder)
        try:
            listener.attach()
            with evaluating(self.model):
                return self.model(*args, **kwargs)
        finally:
            listener.detach()

    forward = __call__

    def save(self, path: str | Path = "data", *, overwrite: bool = False) -> Path:
        """Write the samples so far and their manifest into a folder, and say how many there are.

        A script that is run again finds its own samples there: they are replaced, whatever else lies in the folder
        stays as it is, and samples that were not captured or were changed since are never removed.

        Args:
            path: a new or empty folder, or one with an earlier capture.
            overwrite: replace that also when some of its files were changed since.

        Raises:
            DataError: no call was captured.
            UsageError: the folder holds something else, or a capture that was changed since.

        Returns:
            The folder.
        """
        files = self._recorder.folder.paths()
        if not files:
            raise DataError(
                "there is nothing to save: no call was captured",
                try_="call the wrapper before save(); for a method such as generate(), use fewbit.capture",
            )
        changed = [] if overwrite else manifest.changed_files(Path(path))
        if changed:
            raise UsageError(
                f"{changed[0]} was changed after it was captured",
                where=path,
                expected="a new or empty folder, or an earlier capture as it was written",
                try_="another folder, or overwrite=True to lose the change",
            )
        folder = SampleFolder(path, width=max(4, len(str(len(files) - 1))), overwrite=True, append=False)
        manifest.write_manifest(folder.folder, self._recorder.describe(folder, complete=False))
        for file in files:
            folder.adopt(file)
        manifest.write_manifest(folder.folder, self._recorder.describe(folder, complete=True))
        print(f"Saved {len(files)} npz files to {path}")  # noqa: T201  (the line people look for after save())
        return folder.folder

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        found = getattr(self.model, name)
        if not callable(found) or getattr(found, "__self__", None) is not self.model:
            return found

        @functools.wraps(found)
        def called(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return self if result is self.model else result  # `wrapper = wrapper.to(device)` stays a wrapper

        return called

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.model, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.model)})

    def __repr__(self) -> str:
        return f"NumpyExportWrapper({self.model!r})"
