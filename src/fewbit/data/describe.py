# SPDX-License-Identifier: Apache-2.0
"""A value in a few words, for messages, reports and `repr`."""

from __future__ import annotations

from typing import Any


def describe(value: Any, depth: int = 2) -> str:
    """A value in a few words: types, shapes and dtypes rather than contents.

    >>> import numpy as np
    >>> describe({"ids": np.zeros((2, 3), "int64"), "text": "hello"})
    "{ids: int64[2, 3], text: 'hello'}"
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
    if isinstance(value, str | bytes):
        text = value if len(value) <= 60 else value[:57]
        return repr(text) + ("" if text == value else f"… ({len(value):,} in all)")
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if hasattr(value, "items") and depth:
        parts = [f"{key}: {describe(item, depth - 1)}" for key, item in list(value.items())[:8]]
        return "{" + ", ".join(parts) + (", …" if len(value) > 8 else "") + "}"
    if isinstance(value, list | tuple) and depth:
        parts = [describe(item, depth - 1) for item in value[:4]]
        return f"{type(value).__name__} of {len(value)}: [" + ", ".join(parts) + (", …]" if len(value) > 4 else "]")
    return type(value).__name__
