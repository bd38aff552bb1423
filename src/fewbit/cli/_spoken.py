# SPDX-License-Identifier: Apache-2.0
"""Messages in the words of the command line: `custom_config={'max_length': 64}` is `--data-option max_length=64`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fewbit.cli import _output
from fewbit.cli._own_words import PLACE, replaced, word
from fewbit.errors import FewbitError

_NAMED = re.compile(r"[\w.]+=(?:\[[^\]]*\]|\S+) \((--[a-z][^()]*)\)")  # what says itself how it is written
_KEY = re.compile(r"custom_config\['(\w+)'\]")
_DICT = re.compile(r"custom_config=\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_READER = re.compile(r"(?:pass )?`(encoding|delimiter)=`(?: \('(\w+)' is the usual one\))?")
_PAIR = re.compile(r"'(\w+)': (.+)", re.DOTALL)
_SETTING = r"(?<![\w'\"./-])(?:{names})=('[^']*'|\[[^\]]*\]|[^\s,;:]+)"
_JSON = {"True": "true", "False": "false", "None": "null"}
_WORDS = tuple((word(python), words) for python, words in (
    (" (--data-option)", ""),
    (" (fewbit.generate_dataset_config)", ""),
    ("settings of fewbit.tuning.options.Options", "what `fewbit finetune --help` and the page on fine-tuning list"),
    ("preprocessing_steps", "--step"),
    ("generate_dataset_config", "--data, --step and --data-option"),
    ("dataset_name=", "--data "),
    ("dataset_name", "--data"),
    ("custom_config", "--data-option"),
))  # fmt: skip
_SAYS_WHERE = re.compile(r"custom_config(\['\w+'\])?|dataset_name|preprocessing_steps|generate_dataset_config")


def spoken(text: str, options: Mapping[str, str]) -> str:
    """A message as somebody understands it who typed a line.

    Args:
        text: as it is said in Python.
        options: the command's own option for each setting that has one; `{}` stands for its value.

    >>> spoken("try custom_config={'columns': {'prompt': 'question', 'answer': …}}", {})
    'try --data-option \\'columns={"prompt": "question", "answer": …}\\''
    >>> spoken("max_steps=1000, or precision='bf16'", {"max_steps": "--max-steps {}", "precision": "--precision {}"})
    '--max-steps 1000, or --precision bf16'
    """
    text = replaced(text, _DICT, lambda found: _option(found[1].strip()))
    text = replaced(text, _NAMED, lambda found: found[1])
    text = replaced(text, _READER, _to_reader)
    text = replaced(text, _output.POLICY, lambda found: f"--policy {found[1]}={found[2]}")
    text = _in_words(text)
    if options:
        known = re.compile(_SETTING.format(names="|".join(map(re.escape, options))))
        text = replaced(text, known, lambda found: _written(found, options))
    return PLACE.sub(lambda found: found[1] + spoken_place(found[2]), text)


def spoken_place(where: str) -> str:
    """Where a fault is: a setting's name as the line has it; anything else, such as a path, as it is.

    >>> spoken_place("custom_config['classes']"), spoken_place("/home/me/custom_config/rows.csv")
    ('--data-option classes', '/home/me/custom_config/rows.csv')
    """
    return _in_words(where) if _SAYS_WHERE.fullmatch(where) else where


def _in_words(text: str) -> str:
    text = replaced(text, _KEY, lambda found: f"--data-option {found[1]}")
    for python, words in _WORDS:
        text = replaced(text, python, lambda _, words=words: words)  # type: ignore[misc]
    return text


@contextmanager
def in_words_of_the_line(options: Mapping[str, str]) -> Iterator[Callable[[str], str]]:
    """Within the block errors and warnings of fewbit's speak of the command's own options.

    Args:
        options: see `spoken`.

    Yields:
        What translates a message.
    """

    def told(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        _output.stderr().print(f"{category.__name__}: {spoken(str(message), options)}", markup=False, soft_wrap=True)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = told
            yield lambda text: spoken(text, options)
    except FewbitError as error:
        for part in ("what", "expected", "try_"):
            said = getattr(error, part)
            setattr(error, part, None if said is None else spoken(said, options))
        error.where = error.where and spoken_place(error.where)
        raise


def _option(inside: str) -> str:
    pair = _PAIR.fullmatch(inside)
    if pair is None:
        return "--data-option name=value"
    name, value = pair[1], pair[2].replace("'", '"')
    value = _JSON.get(value, value)
    if value.startswith('"') and value.endswith('"') and value.count('"') == 2:
        value = value[1:-1]
    said = f"{name}={value}"
    return f"--data-option {said}" if re.fullmatch(r"[\w=./…-]+", said) else f"--data-option '{said}'"


def _to_reader(found: re.Match[str]) -> str:
    """An option of whoever reads the files."""
    usual = " (the usual one)" if found[2] else ""
    return _option(f"'reading': {{'{found[1]}': '{found[2] or '…'}'}}") + usual


def _written(found: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = found[0].split("=", 1)
    if value.startswith("["):
        return f"--option '{name}={value.replace(chr(39), chr(34))}'"
    return options[name].format(_JSON.get(value, value.strip("'")))
