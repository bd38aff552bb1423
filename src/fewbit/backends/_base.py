# SPDX-License-Identifier: Apache-2.0
"""What a backend is: a framework's models, seen through the verbs of `fewbit.model.view.ModelView`.

A member is a file with

- `accepts(model) -> bool`: is this one of mine? By types, suffixes and names; it imports no framework;
- `view(model) -> ModelView`: the view of one loaded model. It changes nothing: the caller copies first (`view.copy()`)
  unless the model is to be changed in place.

`view.can` names the optional verbs a backend has (see `ModelView`). An algorithm that needs one asks there first.
The contract tests run over every backend with a small model in `tests/backends/examples.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

from fewbit.model.view import ModelView


class Backend(Protocol):
    """The contract of a member, for type checkers and the contract tests."""

    def accepts(self, model: object) -> bool:
        """Whether this backend takes the model."""

    def view(self, model: Any) -> ModelView:
        """The view of a model it takes."""
