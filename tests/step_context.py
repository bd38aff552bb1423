# SPDX-License-Identifier: Apache-2.0
"""What a step is called with in the tests: its own defaults, and what a test says."""

from __future__ import annotations

from typing import Any

from fewbit.data.keys import faults, filled
from fewbit.data.opening import open_source
from fewbit.data.source import Source
from fewbit.data.steps._base import Context


def context(member: Any, split: str = "train", *, seed: int = 0, **options: Any) -> Context:
    """The context of one step; every option of its own is checked as a configuration would check it."""
    own = {key.name for key in member.KEYS}
    assert not faults({name: value for name, value in options.items() if name in own}, member.KEYS)
    return Context({"seed": seed, **filled(options, member.KEYS)}, tokenizer=lambda: None, split=split)


def apply(member: Any, samples: Any, split: str = "train", **options: Any) -> tuple[Any, Context]:
    """A step done to a list of samples."""
    about = context(member, split, **options)
    source = samples if isinstance(samples, Source) else open_source(samples)
    return member.apply(source, about), about


class Stream(Source):
    """A source that can only be read in order."""

    def __init__(self, samples: list[Any]):
        super().__init__()
        self._samples = samples

    def __iter__(self) -> Any:
        return iter(self._samples)
