# SPDX-License-Identifier: Apache-2.0
"""Layers that a scope names, taken out of a configuration."""

from __future__ import annotations

from typing import Any

from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.schemes.config import Config
from fewbit.schemes.scope import IgnoredScope


def without(config: Config, scope: IgnoredScope | None, view: ModelView) -> Config:
    """The configuration with the ignored layers excluded by name."""
    names = ignored(scope, view)
    return config.excluding(names) if names else config


def ignored(scope: IgnoredScope | None, view: ModelView) -> tuple[str, ...]:
    """The layers that a scope names.

    Raises:
        UsageError: something else than a scope, or one that names what is not there.
    """
    if scope is None:
        return ()
    if not isinstance(scope, IgnoredScope):
        raise UsageError(
            f"ignored_scope is a {type(scope).__name__}",
            where="ignored_scope",
            expected="an IgnoredScope",
            try_="IgnoredScope(names=[…]), or patterns=, types=",
        )
    graph: Any = view
    return scope.select(view.layers(), graph.edges() if "place" in view.can else None)
