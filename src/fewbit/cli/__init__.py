# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a command.

Exit codes: 0 fine, 1 faults found, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from fewbit.cli import _blame
from fewbit.errors import FewbitError, UsageError

_INTERRUPTED = 130
_TRACEBACK = "--traceback"


def main() -> None:
    """The `fewbit` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from fewbit.cli import _output

    whole = _TRACEBACK in arguments  # wherever it stands: it is added to a line that went wrong
    arguments = [argument for argument in arguments if argument != _TRACEBACK]
    as_json = "--json" in arguments
    try:
        code = _app()(arguments, prog_name="fewbit", standalone_mode=False, obj=arguments)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        if whole:
            traceback.print_exception(error)
        told = error if isinstance(error, FewbitError) else _usage_fault(error) or _blame.explain(error)
        if told is None:  # a bug, which stays loud
            raise
        _output.show_error(told, as_json=as_json)
        return told.exit_code
    if code == _INTERRUPTED:  # typer makes an exit code of the interrupt
        _output.stderr().print("interrupted")
    return code if isinstance(code, int) else 0


def commands() -> list[str]:
    """The commands there are: the plain files beside this one."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def _app() -> Any:  # typer is imported here, not by `import fewbit.cli`
    import importlib

    import typer

    app = typer.Typer(
        name="fewbit",
        help="A model and a folder of data in; the smallest model that still gives the right answers out.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in commands():
        app.command(name=name)(importlib.import_module(f"fewbit.cli.{name}").command)

    @app.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and stop."),
        traceback: bool = typer.Option(False, _TRACEBACK, help="Show how an error came about; anywhere in the line."),
    ) -> None:
        if version:
            from fewbit import __version__
            from fewbit.cli import _output

            _output.stdout().print(__version__)
            raise typer.Exit

    return app


def _usage_fault(error: Exception) -> UsageError | None:
    """A wrong command line, in the parser's own words; `None` for anything else."""
    format_message = getattr(error, "format_message", None)
    if format_message is None or not hasattr(error, "exit_code"):
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "fewbit"
    return UsageError(format_message() or "a command is missing", try_=f"`{command} --help`")
