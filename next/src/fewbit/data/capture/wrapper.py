# SPDX-License-Identifier: Apache-2.0
"""`NumpyExportWrapper`: call a model as before, then `save()` what it received."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from fewbit.data.capture.recorder import Recorder, evaluating
from fewbit.data.capture.sample_folder import sample_folder
from fewbit.data.capture.samples import Array


class NumpyExportWrapper:
    """Stands in for a model and remembers the inputs of every call, one sample each, without batch axis.

        model = NumpyExportWrapper(model)
        for data in loader:
            model(data[0])
        model.save()

    Calls run in evaluation mode and without gradients; the model's training flags stay as they are. Other attributes
    are the model's. For more samples than fit into memory use `capture`, which writes them at once.

    Args:
        model: a `torch.nn.Module`.

    Attributes:
        model: the model.
        numpy_data: the samples so far: arrays by the names of `forward`'s parameters.
    """

    def __init__(self, model: Any):
        self.model = model
        self.numpy_data: list[dict[str, Array]] = []
        self._recorder = Recorder(model, self.numpy_data.append)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model and remember what it receives."""
        with self._recorder, evaluating(self.model):
            return self.model(*args, **kwargs)

    forward = __call__

    def save(self, path: str | Path = "data") -> None:
        """Write the samples as `path/input0000.npz` and so on, and print how many there are.

        Args:
            path: a new folder, or one of an earlier `save`, which is replaced; files of others are never touched.
        """
        with sample_folder(Path(path), overwrite=True) as folder:
            folder.manifest |= {"model": type(self.model).__name__, "left_out": self._recorder.left_out}
            for sample in self.numpy_data:
                folder.add(sample)
        print(f"Saved {len(self.numpy_data)} npz files to {path}")  # noqa: T201 - as the guide's class does

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet there: a copy is being made
            raise AttributeError(name)
        value = getattr(self.model, name)
        if not inspect.ismethod(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            return self if result is self.model else result  # `wrapper.to(device)` stays a wrapper

        return call
