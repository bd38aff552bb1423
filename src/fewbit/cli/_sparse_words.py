# SPDX-License-Identifier: Apache-2.0
"""Messages of `sparsify` in the words of its line: `optim_level=1.5` is `--optim-level 1.5`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fewbit.cli._own_words import PLACE, replaced, word
from fewbit.cli._spoken import in_words_of_the_line
from fewbit.data.text.wording import TRY
from fewbit.errors import FewbitError

_NAMES = (
    "model", "data", "optim_level", "use_case", "eval_metric", "samples", "train_samples", "val_samples", "teacher",
    "validation", "recipe", "factory",
)  # fmt: skip
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in _NAMES} | {"output": "--out"}
_WORDS = (
    (word("--data-option"), "--option"),
    (re.compile(r"(?<![\w-])--(step|transform)(?= file\b)"), "--use-case"),
    (re.compile(re.escape(TRY)), "--option text_column=NAME"),
    (re.compile(r"(?<![\w-])--option policy=(?=\w)"), "--policy "),
)
"""What other commands call it."""


@contextmanager
def in_words_of_sparsify() -> Iterator[None]:
    """Within the block errors speak of the options of `fewbit sparsify`."""
    options = {name: f"{flag} {{}}" for name, flag in _FLAGS.items()} | {"mode": "{}"}
    try:
        with in_words_of_the_line(options):
            yield
    except FewbitError as error:
        for part in ("what", "expected", "try_"):
            said = getattr(error, part)
            for others, ours in _WORDS if said else ():
                said = replaced(said, others, lambda _, ours=ours: ours)  # type: ignore[misc]
            setattr(error, part, said and PLACE.sub(lambda found: found[1] + _place(found[2]), said))
        error.where = error.where and _place(error.where)
        raise


def _place(where: str) -> str:
    return _FLAGS.get(where, re.sub(r"^--data-option(?![\w-])", "--option", where))
