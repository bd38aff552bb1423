# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments by the option table: read as on the command line, checked for effect, completed by `config`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from fewbit.errors import FewbitError, UsageError, nearest, raise_all
from fewbit.option_rules import unused
from fewbit.options import OPTIONS, check, options_of

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_PLAIN = (str, int, float, tuple)


def checked(
    command: str, *, implied: tuple[str, ...] = ()
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Check the keyword arguments of a verb against the option table; all errors at once.

    Args:
        command: whose defaults apply.
        implied: options of the command that the function itself stands for.
    """
    table = {option.name: option for option in OPTIONS}
    own = {option.name for option in options_of(command)}

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        signature = _expanded(function, command)

        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            _refuse_unknown(function.__name__, signature, kwargs)
            positional = dict(zip(signature.parameters, args))
            config = kwargs.get("config")
            if isinstance(config, str | Path | Mapping):
                settings = {name: value for name, value in read_config(config, command).items() if name in own}
                kwargs.update({name: value for name, value in settings.items() if name not in {*positional, *kwargs}})
            errors: list[FewbitError] = []
            for name, value in kwargs.items():
                if name in table:
                    try:
                        kwargs[name] = check(table[name], value)
                    except FewbitError as error:
                        errors.append(error)
            given = {*implied}
            for name, value in {**positional, **kwargs}.items():
                default = table[name].default_for(command) if name in table else None
                if not (value is None or value is default or (isinstance(value, _PLAIN) and value == default)):
                    given.add(name)
            raise_all([*errors, *unused(command, given)])
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def read_config(config: str | Path | Mapping[str, Any], command: str) -> dict[str, Any]:
    """Settings by option name, from a `.yaml` or `.json` file or a mapping."""
    from fewbit.settings import SettingsError, read_file

    settings = dict(config) if isinstance(config, Mapping) else read_file(config)
    options = options_of(command) + (options_of("quantize") if command == "plan" else [])  # a plan is for quantize
    known = list(dict.fromkeys(option.name for option in options if option.python and option.name != "config"))
    problems = []
    for name in settings:
        if name not in known:
            similar = nearest(str(name), known)
            guess = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
            problems.append((str(name), f"unknown setting of {command}{guess}"))
    if problems:
        raise SettingsError("the configuration" if isinstance(config, Mapping) else str(config), problems)
    return settings


def refuse_later(name: str, value: Any, command: str, reason: str) -> UsageError:
    """A value that a command will take and does not take yet."""
    return UsageError(
        f"{command} has no {{{name}={value}}} yet: {reason}", code="option-later", param=name, hint=f"remove {{{name}}}"
    )


def _refuse_unknown(name: str, signature: inspect.Signature, kwargs: Mapping[str, Any]) -> None:
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
    for name, annotation in names.items():
        default = table[name].default_for(command) if name in table else None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return signature.replace(parameters=parameters)
