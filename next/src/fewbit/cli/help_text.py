# SPDX-License-Identifier: Apache-2.0
"""Help texts, made from the option table."""

from __future__ import annotations

import pkgutil
import textwrap
from functools import cache
from pathlib import Path

from fewbit.cli.parsing import usage
from fewbit.option_rules import shown_options
from fewbit.options import COMMANDS, GROUPS, Command, Option

_HEAD = "fewbit: make models smaller and check that they still work"
_COLUMN = 28


@cache
def built_commands() -> tuple[str, ...]:
    """The commands that have a file in this folder, in the order of the table."""
    files = {info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return tuple(command.name for command in COMMANDS if command.name in files)


def main_help() -> str:
    """What `fewbit --help` prints."""
    lines = [_HEAD, "", "Usage: fewbit COMMAND [OPTIONS]"]
    shown = [command for command in COMMANDS if command.name in built_commands()]
    for group in dict.fromkeys(command.group for command in shown):
        lines += ["", f"{group}:"]
        lines += [f"  {command.name:<12}{command.help}" for command in shown if command.group == group]
    lines += [
        "",
        "Options:",
        "  -h, --help     Show help; 'fewbit COMMAND --help' for one command",
        "  -V, --version  Show the version",
        "      --install-completion  Install completion for this shell",
        "",
        "Start here:  fewbit demo",
    ]
    return "\n".join(lines)


def command_help(name: str, *, long: bool, width: int = 80) -> str:
    """What `-h` (common options) or `--help` (all options, in groups) of a command prints."""
    command = next(command for command in COMMANDS if command.name == name)
    width = max(60, min(width, 100))
    lines = [f"{command.help}.", "", f"Usage: {usage(command)}", "", "Examples:"]
    lines += [f"  {example}" for example in command.examples]
    options = shown_options(name)
    if not long:
        common = [option for option in options if option.common]
        lines += ["", "Common options:", *_rows(common, command, width)] if common else []
        lines += ["", f"All options: fewbit {name} --help"]
        return "\n".join(lines)
    for group in GROUPS:
        members = [option for option in options if option.group == group]
        if members:
            lines += ["", f"{group}:", *_rows(members, command, width)]
    return "\n".join(lines)


def _rows(options: list[Option], command: Command, width: int) -> list[str]:
    lines = []
    for option in options:
        short = f"-{option.short}, " if option.short else "    "
        value = option.value or "|".join(option.choices)
        flag = f"  {short}{option.flag}{' ' + value if value else ''}"
        if option.kind == "flag" and option.default:
            flag = f"  {short}--no-{option.flag[2:]}"
        wrapped = textwrap.wrap(option.help + _default(option, command), width - _COLUMN - 2)
        if len(flag) > _COLUMN:
            lines.append(flag)
            flag = ""
        lines += [f"{flag if not i else '':<{_COLUMN}}  {text}" for i, text in enumerate(wrapped)]
    return lines


def _default(option: Option, command: Command) -> str:
    default = option.default_for(command.name)
    if (default in (None, False, True, (), 0) and default != 0) or option.kind in ("flag", "count"):
        return ""
    return f" [default: {default}]"
