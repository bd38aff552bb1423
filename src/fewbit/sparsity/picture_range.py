# SPDX-License-Identifier: Apache-2.0
"""Which size and range of pictures a model was made for: what somebody says, its own files, its graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from fewbit.data.signature import read_signature

_FILE = "preprocessor_config.json"


def picture_range(model: Any, home: str | None, said: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the step `rescaling`: `image_size`, `image_mean`, `image_std`; those that nobody knows left out.

    Args:
        model: an `nn.Module` or a `ModelProto`.
        home: its folder or file, if it has one.
        said: what the user says, which holds before all else.
    """
    found = {**_of_inputs(model), **_of_config(model), **_of_files(home)}
    return found | {name: value for name, value in said.items() if value is not None}


def _of_inputs(model: Any) -> dict[str, Any]:
    """A size that the graph is fixed to."""
    for spec in read_signature(model).inputs:
        if spec.shape is not None and len(spec.shape) == 4:
            last = spec.shape[3] in (1, 3, 4) and spec.shape[1] not in (1, 3, 4)
            sides = spec.shape[1:3] if last else spec.shape[2:]
            if all(isinstance(side, int) and side > 0 for side in sides):
                return {"image_size": list(sides)}
    return {}


def _of_config(model: Any) -> dict[str, Any]:
    size = getattr(getattr(model, "config", None), "image_size", None)
    if isinstance(size, int):
        return {"image_size": [size, size]}
    return {"image_size": list(size)} if isinstance(size, list | tuple) and len(size) == 2 else {}


def _of_files(home: str | None) -> dict[str, Any]:
    place = None if home is None else Path(home).expanduser()
    file = None if place is None else (place if place.is_dir() else place.parent) / _FILE
    if file is None or not file.is_file():
        return {}
    try:
        values = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError:
        return {}
    size = values.get("crop_size") if values.get("do_center_crop") else values.get("size")
    found: dict[str, Any] = {}
    if isinstance(size, Mapping) and {"height", "width"} <= size.keys():
        found["image_size"] = [size["height"], size["width"]]
    elif isinstance(size, Mapping) and "shortest_edge" in size:
        found["image_size"] = [size["shortest_edge"]] * 2
    elif isinstance(size, int):
        found["image_size"] = [size, size]
    if values.get("do_resize") is False:
        found.pop("image_size", None)
    if values.get("do_normalize", "image_mean" in values):
        found |= {name: values[name] for name in ("image_mean", "image_std") if values.get(name)}
    return found
