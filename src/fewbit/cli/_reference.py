# SPDX-License-Identifier: Apache-2.0
"""What a `file.py:function` of the user's own has to be, told before it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

from fewbit import registry
from fewbit.errors import UsageError


def load_function(text: str, *, returns: str, takes: tuple[str, ...] = ()) -> Callable[..., Any]:
    """The function that a reference names.

    Args:
        text: the reference, `"file.py:function"`.
        returns: what the function is to return, for the message.
        takes: what it is called with, by names for the message.

    Raises:
        UsageError: not a reference, no such file or name, something that is not called like that.
    """
    expected = f"a function of {', '.join(takes) or 'no arguments'} that returns {returns}, as file.py:function"
    if not registry.is_reference(text):
        raise UsageError(f"{text!r} does not name a function", expected=expected)
    found = registry.load_reference(text)
    if not callable(found) or _is_module(found):
        raise UsageError(f"{text.rpartition(':')[2]} is a {type(found).__name__}", where=text, expected=expected)
    try:
        signature(found).bind(*takes)
    except TypeError as error:
        raise UsageError(f"it cannot be called: {error}", where=text, expected=expected) from error
    except ValueError:  # something built in, which does not say what it takes
        pass
    return found  # type: ignore[no-any-return]


def _is_module(found: object) -> bool:
    """Whether this is a network: it can be called too, but gives no network. Where there is one, torch is loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, torch.nn.Module)
