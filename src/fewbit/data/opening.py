# SPDX-License-Identifier: Apache-2.0
"""From a path or an object to a `Source`: find the format, check the options, open it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fewbit.data.detect import find_format
from fewbit.data.findings import Policy
from fewbit.data.source import Source
from fewbit.errors import UsageError, nearest

_ALWAYS = frozenset({"source", "report", "out", "split", "task", "policy", "signature", "quick"})


def as_path(data_source: Any) -> Any:
    """A text or path-like as a `Path`, a `Dataset` as its source; everything else as it is."""
    inner = getattr(data_source, "source", None)
    if isinstance(inner, Source):
        return inner
    if isinstance(data_source, str | os.PathLike):
        if not os.fspath(data_source):
            raise UsageError("the path is empty", expected="a file or folder", try_="is a variable not set?")
        return Path(data_source).expanduser()
    return data_source


def open_source(
    data_source: Any,
    *,
    format: str | None = None,
    task: str | None = None,
    split: str | None = None,
    policy: Mapping[str, str] | str | None = None,
    **options: Any,
) -> Source:
    """Open whatever the user has. See `open_dataset` for the arguments."""
    source = as_path(data_source)
    name, member, why = find_format(source, format)
    check_options(member.read, options, name)
    opened: Source = member.read(source, split=split, task=task, policy=Policy(member.CODES, policy), **options)
    opened.facts.setdefault("format", name)
    opened.facts.setdefault("why", why)
    return opened


def options_of(function: Callable[..., Any]) -> list[str]:
    """The names of a format's own options: its function's signature is the list of them."""
    return [name for name in inspect.signature(function).parameters if name not in _ALWAYS]


def check_options(function: Callable[..., Any], options: Mapping[str, Any], format: str) -> None:
    """Refuse options a format does not have, all at once, with near matches."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = options_of(function)
    unknown = [name for name in options if name not in parameters]
    if unknown:
        raise UsageError(
            f"the format {format!r} has no option {', '.join(map(repr, unknown))}",
            expected="; ".join(nearest(name, known) for name in unknown),
        )
