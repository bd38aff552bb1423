# SPDX-License-Identifier: Apache-2.0
"""What is said when a command is stopped: what is left of it, and the line that goes on."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from fewbit.cli import _output

_NOTHING = "nothing was finished, and nothing is left"


@contextmanager
def told_how_to_go_on(
    context: typer.Context, left: Callable[[], Path | None], nothing: str = _NOTHING
) -> Iterator[None]:
    """Say on an interrupt how to go on.

    Args:
        context: of the command.
        left: tidies up; returns where finished work lies that the same line begins with, none if there is none.
        nothing: what is said if there is none.
    """
    try:
        yield
    except KeyboardInterrupt:
        place = left()
        what = nothing if place is None else f"what is finished lies in {place}"
        again = "to start again" if place is None else "to go on from there"
        typed = [word for word in context.find_root().obj if word != "--no-resume"]  # which would throw it away
        line = shlex.join(["fewbit", *typed])
        _output.stderr().print(f"{what}; {again}: {line}", markup=False, soft_wrap=True)
        raise
