# SPDX-License-Identifier: Apache-2.0
"""One type for each column of mixed ones, chosen from the whole column and so never by the order of its rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fewbit.data.tables.schema import Schema

_FULL = {"empty": "str", "nan": "float"}


def target(types: Iterable[str]) -> type | None:
    """The type that holds all of a column's values: numbers as float, numbers and booleans as int, else text.

    >>> target(["int", "str"]), target(["int", "float", "null"]), target(["int", "list[str]"])
    (<class 'str'>, <class 'float'>, None)
    """
    found = {_FULL.get(kind, kind) for kind in types if kind != "null"}
    if not found <= {"str", "int", "float", "bool"} or len(found) < 2:
        return None
    if "str" in found:
        return str
    return float if "float" in found else int


def targets(schema: Schema) -> dict[str, type]:
    """The columns to cast, by name; nested ones stay as they are."""
    columns = schema.columns()
    chosen = {name: target(columns[name]) for name in schema.mixed() if name.rpartition(".")[0] not in columns}
    return {name: kind for name, kind in chosen.items() if kind is not None}


def coerced(values: dict[str, Any], chosen: Mapping[str, type]) -> dict[str, Any]:
    """A row with its mixed columns cast; null stays null.

    >>> coerced({"label": 7, "ok": True}, {"label": str, "ok": str})
    {'label': '7', 'ok': 'true'}
    """
    for name, kind in chosen.items():
        value = values.get(name)
        if value is not None and type(value) is not kind:
            with contextlib.suppress(OverflowError):  # an integer no float can hold stays one
                values[name] = json.dumps(value) if kind is str else kind(value)
    return values
