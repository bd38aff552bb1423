# SPDX-License-Identifier: Apache-2.0
"""Whether a name, steps and options make a configuration: every fault at once, each with what was probably meant."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fewbit.data.keys import GENERAL, Key, faults, filled
from fewbit.data.preparing.frozen import Frozen
from fewbit.data.preparing.origin import CUSTOM, Origin, find_origin, is_text, reader_options
from fewbit.data.preparing.step_list import Step, faults_of, find_steps, step_keys
from fewbit.data.text.named_tokenizer import BYTES, fault_of
from fewbit.errors import UsageError, nearest


def checked(
    data: Any, steps: Any, given: Mapping[str, Any], wrong: Sequence[str] = (), *, warn: bool = False
) -> tuple[str, tuple[str, ...], Frozen, Any]:
    """The parts of a configuration without a fault.

    Raises:
        UsageError: every fault.
    """
    wrong = list(wrong)
    data = os.fspath(data) if isinstance(data, os.PathLike) else data
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
    origin = _find(data, given, wrong)
    if steps is None and origin is not None:
        steps = origin.preset.STEPS if is_text(origin, given.get("format")) else ()
    found, faulty = find_steps(() if steps is None else steps)
    wrong += faulty
    keys = keys_of(origin, found)
    options = filled(given, keys)
    unfit = _key_faults(given, keys, origin)
    wrong += unfit or faults_of(found, options)  # which may trust each key
    wrong += _column_faults(options["columns"], origin)
    fault = fault_of(options["tokenizer"])
    wrong += [fault] if fault else []
    if wrong or origin is None:
        raise UsageError(
            f"the configuration has {len(wrong)} fault{'s' if len(wrong) > 1 else ''}:\n"
            + "\n".join(f"  - {line}" for line in wrong),
            where="generate_dataset_config",
        )
    if warn:
        _warn(origin, found, options)
    name = data if isinstance(data, str) else origin.how.removeprefix("a ")
    return name, tuple(step.name for step in found), Frozen(options), data


def _find(data: Any, given: Mapping[str, Any], wrong: list[str]) -> Origin | None:
    path = given.get("path")
    try:
        if data is None:
            raise UsageError("dataset_name is None", expected="a preset, a path, a hub id or a dataset")
        return find_origin(data, path if isinstance(path, str) else None)
    except UsageError as error:
        wrong.append(error.what if error.expected is None else f"{error.what}; {error.expected}")
        return None


def keys_of(origin: Origin | None, steps: Sequence[Step]) -> list[Key]:
    """Every key that somebody reads; a preset has its own word about what everybody knows."""
    own = () if origin is None else getattr(origin.preset, "KEYS", ())
    every = [*GENERAL, *own, *(key for step in steps for key in step.keys)]
    return list({key.name: key for key in every}.values())


def _key_faults(given: Mapping[str, Any], keys: Sequence[Key], origin: Origin | None) -> list[str]:
    known = {key.name for key in keys}
    elsewhere = step_keys() if given.keys() - known else {}
    known_by_others = [name for name in given if name not in known and name in elsewhere]
    lines = [
        f"{name}: only {' or '.join(map(repr, elsewhere[name]))} reads it, which is not among the steps"
        for name in known_by_others
    ]
    strange = {name: given[name] for name in given if name not in known and name not in elsewhere}
    own = reader_options(origin, given.get("format")) if strange else ()
    of_reader = {name: value for name, value in strange.items() if name in own}
    lines += [f"{name}: no such key; it is said as {_said_to_reader(name, value)}" for name, value in of_reader.items()]
    rest = {name: value for name, value in given.items() if name not in {*known_by_others, *of_reader}}
    return lines + faults(rest, keys)


def _said_to_reader(name: str, value: Any) -> str:
    """How an option of the reader is said in a configuration; the label is a column as others are."""
    said = {"columns": {"text": "your column", "label": value}} if name == "label" else {"reading": {name: value}}
    return f"custom_config={said}"


def _column_faults(columns: Any, origin: Origin | None) -> list[str]:
    if not isinstance(columns, Mapping) or origin is None:
        return []
    fields = getattr(origin.preset, "FIELDS", None) or (*origin.preset.COLUMNS, "input")
    wrong = [
        f"columns: {name!r} is nothing it reads; {nearest(name, fields)}" for name in columns if name not in fields
    ]
    if origin.preset.COLUMNS or wrong:
        return wrong
    # Of columns that are named, those are all there are: a prompt alone would be learned as a text.
    return [
        f"columns: {one!r} without {other!r}; expected both, or 'text' for one that is learned whole"
        for one, other in (("prompt", "answer"), ("answer", "prompt"))
        if one in columns and not {other, "question", "context"} & columns.keys()
    ]


def _warn(origin: Origin, steps: Sequence[Step], options: Mapping[str, Any]) -> None:
    names = [step.name for step in steps]
    if origin.sample:
        warnings.warn(
            f"{CUSTOM!r} names no data, and no file or folder {CUSTOM!r} is here: {len(origin.place)} rows of a small "
            "sample are used. Your own: custom_config={'path': 'rows.jsonl'}, with columns={'prompt': …, 'answer': …} "
            "where they have other names.",
            UserWarning,
            stacklevel=4,
        )
    if "tokenization" in names and options["tokenizer"] is None:
        warnings.warn(
            f"no tokenizer is named: every byte is a token. The model's own: custom_config={{'tokenizer': folder}}; "
            f"'{BYTES}' says that bytes are meant.",
            UserWarning,
            stacklevel=4,
        )
    asks = "masking" in getattr(origin.preset, "STEPS", ()) and bool(getattr(origin.preset, "COLUMNS", ()))
    if "tokenization" in names and "masking" not in names and asks:
        warnings.warn("'masking' is not among the steps: prompts are learned as well as answers", stacklevel=4)


def read_options(given: Any) -> tuple[dict[str, Any], list[str]]:
    """Options from a mapping or a file, and what is wrong with where they come from."""
    if given is None:
        return {}, []
    if isinstance(given, str | os.PathLike):
        path = Path(given).expanduser()
        if not path.is_file():
            return {}, [f"custom_config={str(given)!r}: there is no such file"]
        given = yaml.safe_load(path.read_text(encoding="utf-8-sig"))  # JSON is YAML too
    if not isinstance(given, Mapping):
        return {}, [f"custom_config is {type(given).__name__}: expected options by name"]
    return {str(name): value for name, value in given.items()}, []
