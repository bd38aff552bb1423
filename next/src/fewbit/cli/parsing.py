# SPDX-License-Identifier: Apache-2.0
"""Command lines by the option table: click splits the words, and all mistakes are raised together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fewbit.errors import FewbitError, UsageError, nearest, raise_all
from fewbit.option_rules import shown_options, unused
from fewbit.options import COMMANDS, REMOVED, Command, Option, options_of, parse


def parse_command(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The values of one command, by parameter name; positional ones by their lower-case name.

    Args:
        name: the command.
        words: what follows it.

    Returns:
        Every option of the command, and the key `given`: the words of those that were on the line, by name.

    Raises:
        UsageError: all mistakes at once.
    """
    command = next(command for command in COMMANDS if command.name == name)
    options = options_of(name)
    values: dict[str, Any] = {option.name: option.default_for(name) for option in options}
    errors: list[FewbitError] = []
    raw, rest = _split(name, options, words, errors)
    for option in options:
        if option.name not in raw:
            continue
        try:
            values[option.name] = (
                raw[option.name] if option.kind in ("flag", "count") else parse(option, raw[option.name])
            )
        except UsageError as error:
            errors.append(error)
    values["given"] = raw
    if "config" not in raw:  # which may bring what an option needs; then the verb itself looks
        errors += unused(name, [option.name for option in options if values[option.name] != option.default_for(name)])
    positional = _without_unknown(name, options, rest, errors)
    _arguments(command, positional, values, errors)
    raise_all(errors)
    return values


def _split(
    name: str, options: Sequence[Option], words: Sequence[str], errors: list[FewbitError]
) -> tuple[dict[str, Any], list[str]]:
    """Texts by option name as they were given, and the words that are no option."""
    built = _click_command(name, options)
    context = click.Context(built, info_name=name, ignore_unknown_options=True, allow_extra_args=True)
    try:
        parsed, rest, _ = built.make_parser(context).parse_args(list(words))
    except click.BadOptionUsage as error:
        flag = error.option_name
        errors.append(
            UsageError(
                f"{flag} needs a value", code="option-value", param=flag.lstrip("-").replace("-", "_"),
                hint=f"fewbit {name} --help",
            )
        )  # fmt: skip
        return {}, []
    except click.UsageError as error:
        errors.append(UsageError(error.message, code="option-value", hint=f"fewbit {name} --help"))
        return {}, []
    return {key: value for key, value in parsed.items() if value not in (None, ())}, list(rest)


def _click_command(name: str, options: Sequence[Option]) -> click.Command:
    parameters: list[click.Parameter] = []
    for option in options:
        flags = [option.flag, *([f"-{option.short}"] if option.short else []), option.name]
        if option.kind == "flag":
            flags[0] = f"{option.flag}/--no-{option.flag[2:]}" if option.default else option.flag
            parameters.append(click.Option(flags, is_flag=True, default=None))
        elif option.kind == "count":
            parameters.append(click.Option(flags, count=True, default=None))
        else:
            parameters.append(click.Option(flags, multiple=True, type=click.UNPROCESSED, help=option.help))
    return click.Command(name, params=parameters)


def _without_unknown(name: str, options: Sequence[Option], rest: list[str], errors: list[FewbitError]) -> list[str]:
    """Report words that look like options and are none; the word after such an option is taken for its value."""
    positional, index = [], 0
    while index < len(rest):
        word = rest[index]
        index += 1
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        errors.append(_unknown_option(name, options, word.partition("=")[0]))
        if "=" not in word and word.startswith("--") and index < len(rest) and not rest[index].startswith("-"):
            index += 1
    return positional


def _unknown_option(name: str, options: Sequence[Option], flag: str) -> UsageError:
    key = flag.lstrip("-").replace("-", "_")
    replacement = REMOVED.get(key)
    similar = nearest(flag.lstrip("-"), [option.flag[2:] for option in options])
    if replacement is not None and any(option.name == replacement for option in options):
        hint = f"{{{replacement}}}"
    elif similar:
        hint = f"--{similar[0]}"
    else:
        hint = f"fewbit {name} --help lists all options"
    return UsageError(
        f"{name} has no option {flag}",
        code="option-unknown",
        expected=", ".join(f"--{flag}" for flag in similar) or None,
        hint=hint,
    )


def _arguments(command: Command, positional: list[str], values: dict[str, Any], errors: list[FewbitError]) -> None:
    """Positional words by the names in the table: MODEL, DATA, DIR..., [KIND]."""
    names = list(command.arguments)
    if names and names[0].endswith("..."):
        values["folders"] = positional
        if not positional:
            errors.append(_missing(command, names[0].removesuffix("...")))
        return
    for index, label in enumerate(names):
        optional = label.startswith("[")
        key = label.strip("[]").lower()
        if names.count(label) > 1:
            key = ("original", "compressed")[index]
        if index < len(positional):
            values[key] = positional[index]
        elif optional:
            values[key] = None
        else:
            values[key] = None
            errors.append(_missing(command, label))
    if len(positional) > len(names):
        extra = positional[len(names) :]
        errors.append(
            UsageError(
                f"{command.name} takes {', '.join(names) or 'no arguments'}; {' '.join(extra)!r} is too much",
                code="argument-extra",
                expected=usage(command),
                hint="put options behind a flag; quote paths with spaces",
            )
        )


def positional_names(name: str) -> frozenset[str]:
    """Parameters of a command that stand without a flag.

    >>> sorted(positional_names("capture"))
    ['model']
    """
    command = next(command for command in COMMANDS if command.name == name)
    return frozenset(label.strip("[].").lower() for label in command.arguments)


def _missing(command: Command, label: str) -> UsageError:
    return UsageError(
        f"{command.name} needs {label}", code="argument-missing", expected=usage(command),
        hint=command.examples[0] if command.examples else f"fewbit {command.name} --help",
    )  # fmt: skip


def usage(command: Command) -> str:
    """`fewbit check DATA [OPTIONS]`."""
    return " ".join(["fewbit", command.name, *command.arguments, "[OPTIONS]"])


def shell_completion() -> int | None:
    """Answer a shell that asks for completions; `None` if none does."""
    if "_FEWBIT_COMPLETE" not in os.environ:
        return None
    from click.shell_completion import shell_complete

    from fewbit.cli.help_text import built_commands

    group = click.Group(
        "fewbit", commands={name: _click_command(name, shown_options(name)) for name in built_commands()}
    )
    return shell_complete(group, {}, "fewbit", "_FEWBIT_COMPLETE", os.environ["_FEWBIT_COMPLETE"])


def install_completion() -> str:
    """Add completion to the user's shell; returns what was done."""
    from click.shell_completion import get_completion_class

    shell = Path(os.environ.get("SHELL", "bash")).name
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(
            f"no completion for the shell {shell!r}", code="shell-unknown", expected="bash, zsh or fish",
            hint="set the environment variable SHELL",
        )  # fmt: skip
    group = click.Group("fewbit")
    script = kind(group, {}, "fewbit", "_FEWBIT_COMPLETE").source()
    places = {
        "bash": Path.home() / ".local/share/bash-completion/completions/fewbit",
        "zsh": Path.home() / ".zfunc/_fewbit",
        "fish": Path.home() / ".config/fish/completions/fewbit.fish",
    }
    place = places[shell]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(script)
    more = "; zsh reads it if ~/.zfunc is in fpath" if shell == "zsh" else ""
    return f"completion for {shell} is in {place}; start a new shell{more}"
