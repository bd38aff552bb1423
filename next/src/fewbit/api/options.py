# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments by the option table: values are read as on the command line, unknown names get a near one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_type_hints

from fewbit.errors import FewbitError, nearest, raise_all
from fewbit.options import OPTIONS, check

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def checked(command: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Check the keyword arguments of a verb against the option table; all errors at once.

    Args:
        command: whose defaults apply.
    """
    table = {option.name: option for option in OPTIONS}

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = _expanded(function, command)

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            _refuse_unknown(function.__name__, signature, kwargs)
            errors: list[FewbitError] = []
            for name, value in kwargs.items():
                if name in table:
                    try:
                        kwargs[name] = check(table[name], value)
                    except FewbitError as error:
                        errors.append(error)
            raise_all(errors)
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def _refuse_unknown(name: str, signature: inspect.Signature, kwargs: dict[str, Any]) -> None:
    unknown = [key for key in kwargs if key not in signature.parameters]
    if unknown:
        similar = nearest(unknown[0], list(signature.parameters))
        guess = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}{guess}")


def _expanded(function: Callable[..., Any], command: str) -> inspect.Signature:
    """The signature with every name of the option groups written out."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    group = get_type_hints(function, include_extras=True).get("options")
    names = get_type_hints(group.__args__[0]) if group is not None else {}
    table = {option.name: option for option in OPTIONS}
    for name in names:
        default = table[name].default_for(command) if name in table else None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=names[name])
        )
    return signature.replace(parameters=parameters)
