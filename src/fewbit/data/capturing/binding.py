# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call under the names the module's `forward` gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fewbit.data.describe import describe
from fewbit.errors import UsageError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Binder:
    """Binds calls to a `forward`: parameter names where it has them, `input_<position>` for `*args`.

    Args:
        forward: the bound method, as it is before anything is hooked into it.

    >>> Binder(lambda x, *rest, **options: None).bind(("a", "b"), {"mask": "c"})
    {'x': 'a', 'input_1': 'b', 'mask': 'c'}
    """

    def __init__(self, forward: Callable[..., Any]):
        try:
            self._signature = inspect.signature(forward)
        except (TypeError, ValueError):  # a builtin says nothing about its parameters
            self._signature = inspect.signature(lambda *args, **kwargs: None)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names `forward` itself declares."""
        kinds = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        return tuple(p.name for p in self._signature.parameters.values() if p.kind in kinds)

    @property
    def open_ended(self) -> bool:
        """Whether `forward` takes any further keyword."""
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self._signature.parameters.values())

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether `forward` can be called so."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What was passed, by name and in the order of the signature; defaults are not added.

        Raises:
            UsageError: `forward` cannot be called so, or two arguments would get the same name.
        """
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UsageError(
                f"the model cannot be called like this: {error}",
                where=describe_call(args, kwargs),
                expected=f"forward{self._signature}",
            ) from error
        named: dict[str, Any] = {}
        position = 0
        for name, value in bound.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                entries = {f"input_{position + offset}": item for offset, item in enumerate(value)}
            else:
                entries = value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
            position += kind in _POSITIONAL
            if doubled := entries.keys() & named.keys():
                raise UsageError(
                    f"two arguments would both be called {min(doubled)!r}", where=f"forward{self._signature}"
                )
            named |= entries
        return named


def innermost(module: Any) -> Any:
    """The module whose `forward` has the names: inside what `torch.compile` or data parallelism put round it."""
    inner = getattr(module, "_orig_mod", None)
    if type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
        inner = getattr(module, "module", None)
    return module if inner is None else innermost(inner)


def describe_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call in words: types, and for tensors dtype and shape.

    >>> describe_call((3, None), {"mode": "fast"})
    "3, None, mode='fast'"
    """
    words = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in kwargs.items())]
    return ", ".join(words) or "no arguments at all"
