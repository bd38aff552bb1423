# SPDX-License-Identifier: Apache-2.0
"""What a stage of a recipe is.

A member is a file with

- `Settings`: a frozen dataclass, whose fields are the keys of the stage in a recipe, with types, defaults and a
  docstring that says what each means; a value that cannot be is a `UsageError` when it is made;
- `refuse(settings, model, job)`: every reason why it cannot be done with this model, data and machine, as `UsageError`
  or `DataError`, before anything is computed; looks at the model, and runs nothing long;
- `run(model, settings, job) -> model`: does it. The model it gives is a new one, or the one it was given where that is
  not the user's; what it did is in `job.record`: a line for each layer, and its facts under the name of the stage.

Stages run in the order of the recipe; what makes codes comes last. A model is an `nn.Module` or an ONNX
`ModelProto`; `fewbit.engine.run.view_of` gives the view of either.
"""

from __future__ import annotations

from typing import Any, Protocol

from fewbit.sparsity.job import Job


class Stage(Protocol):
    """What a stage's module offers."""

    Settings: type[Any]

    def refuse(self, settings: Any, model: Any, job: Job) -> None:
        """Say why it cannot be done, before anything is."""

    def run(self, model: Any, settings: Any, job: Job) -> Any:
        """Do it."""
