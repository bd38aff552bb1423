# SPDX-License-Identifier: Apache-2.0
"""Reads a command line with the option table, runs the command, prints the result or the error, returns the exit code.

Exit codes: 0 done; 1 done, and the answer is no; 2 wrong use, nothing was started; 3 failed while running; 4 a bug in
fewbit; 130 and 143 interrupted.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from fewbit import __version__
from fewbit.cli import help_text
from fewbit.cli.parsing import parse_command, positional_names, shell_completion
from fewbit.cli.surface import Surface
from fewbit.errors import POSITIONAL, FewbitError, UsageError, nearest
from fewbit.options import FOREIGN_COMMANDS

OK, FAILED, INTERRUPTED, TERMINATED = 0, 3, 130, 143


class _Terminated(BaseException):
    """SIGTERM arrived."""


def entry() -> None:
    """The `fewbit` command."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after `fewbit`; those of this process by default.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if (code := shell_completion()) is not None:
        return code
    surface = Surface(words)
    previous = _on_sigterm()
    try:
        return _dispatch(words, surface)
    except FewbitError as error:
        return surface.error(error)
    except KeyboardInterrupt:
        return surface.interrupted(INTERRUPTED)
    except _Terminated:
        return surface.interrupted(TERMINATED)
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except Exception as error:
        return surface.bug(error)
    finally:
        POSITIONAL.set(frozenset())
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _dispatch(words: list[str], surface: Surface) -> int:
    known = help_text.built_commands()
    if not words or words[0] in ("-h", "--help") or words == ["help"]:
        surface.print(help_text.main_help())
        return OK
    if words[0] in ("-V", "--version", "version"):
        surface.print(f"fewbit {__version__}")
        return OK
    if words[0] == "--install-completion":
        from fewbit.cli.parsing import install_completion

        surface.print(install_completion())
        return OK
    if words[0] == "help":
        words = [words[1], "--help"]
    name = words[0]
    if name not in known:
        raise _unknown(name, list(known))
    if any(word in ("-h", "--help") for word in words[1:]):
        surface.print(help_text.command_help(name, long="--help" in words, width=surface.width))
        return OK
    POSITIONAL.set(positional_names(name))
    values = parse_command(name, words[1:])
    command = importlib.import_module(f"fewbit.cli.{name}")
    if hasattr(command, "complete"):  # what follows from the line alone, such as the name of the output
        command.complete(values)
    surface.start(name, values)
    code: int = command.run(values, surface)
    return code


def _unknown(name: str, known: list[str]) -> UsageError:
    if name.startswith("-"):
        return UsageError(
            f"fewbit has no option {name}", code="option-unknown", expected="a command first: fewbit COMMAND ...",
            hint="fewbit --help",
        )  # fmt: skip
    similar = nearest(name, known)
    return UsageError(
        f"fewbit has no command {name!r}",
        code="command-unknown",
        expected=", ".join(similar) or None,
        hint=FOREIGN_COMMANDS.get(name) or (f"fewbit {similar[0]}" if similar else "fewbit --help lists the commands"),
    )


def _on_sigterm() -> Any:
    def terminate(signum: int, frame: FrameType | None) -> None:
        raise _Terminated

    try:
        return signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not in the main thread
        return None
