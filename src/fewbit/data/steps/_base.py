# SPDX-License-Identifier: Apache-2.0
"""What a step is.

A member is a file with

- `AFTER`: names of steps that have to come before it, if they are there at all; the order they are given in is checked;
- `NEEDS`: names of steps without which it makes no sense;
- `KEYS`: the keys of `custom_config` it reads;

one of two functions:

- `make(context) -> Callable[[sample], sample | None]`: changes one sample at a time; none leaves it out, which is
  counted in the record. The sample that is given is not changed.
- `apply(source, context) -> Source`: makes another source of a whole one.

and, where they differ from what is assumed:

- `DROPS = False`: `make`'s function leaves nothing out, so that how many samples there are is known without reading;
- `lengths(lengths, context) -> lengths`: how many tokens `make`'s function leaves, where that is known without reading;
- `PARTS = True`: it reads `parts` (below), which leave the sample after the last step that does;
- `faults(options) -> list[str]`: what is wrong with options that each fit for themselves, one line each.

A sample is a dict. Before tokenization it has the fields its preset gives: `prompt` and `answer`, or `text`, or
`messages`, and `label` where there is one, or `image` with `label`, `boxes`, `mask`. From there on it has `input_ids`,
and `labels` where something is learned of it: -100 wherever nothing is. What is learned is decided by position, never
by the id of a token: the end of a text is learned even where padding looks the same. `parts` says of each token whose
it is, one of the numbers of `fewbit.data.text.parts`.

A user's own step is `"file.py:function"`, called with a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.source import Source
from fewbit.data.text.parts import ANSWERED as ANSWERED
from fewbit.data.text.parts import ASKED as ASKED
from fewbit.data.text.parts import CALCULATED as CALCULATED
from fewbit.data.text.parts import FRAME as FRAME
from fewbit.data.text.parts import NOTHING as NOTHING
from fewbit.record import Record

SampleStep = Callable[[dict[str, Any]], dict[str, Any] | None]


@dataclass(frozen=True)
class Context:
    """What a step may know.

    Args:
        options: every key of the configuration, defaults filled in.
        tokenizer: opens the tokenizer, the same one every time; raises if there is none.
        split: `"train"`, `"validation"` or another name.
        record: takes what was left out, repaired or assumed.
        fingerprint: of everything that comes in, if it is known without reading it.
        open: opens other data the same way, up to this step: a path, a name, or a configuration.
    """

    options: Mapping[str, Any]
    tokenizer: Callable[[], Any]
    split: str = "train"
    record: Record = field(default_factory=lambda: Record("prepare"))
    fingerprint: str | None = None
    open: Callable[[Any], Source] | None = None

    @property
    def seed(self) -> int:
        """Of everything that is drawn."""
        return int(self.options["seed"])
