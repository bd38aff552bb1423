# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a command.

Exit codes: 0 fine, 1 faults found, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fewbit.errors import FewbitError


def main() -> None:
    """The `fewbit` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from fewbit.cli import _output

    try:
        code = _app()(arguments, prog_name="fewbit", standalone_mode=False)
    except FewbitError as error:
        _output.show_error(error, as_json="--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        _output.stderr().print("interrupted")
        return 130
    except Exception as error:
        return _usage_fault(error, as_json="--json" in arguments)
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
    def root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
        if version:
            from fewbit import __version__
            from fewbit.cli import _output

            _output.stdout().print(__version__)
            raise typer.Exit

    return app


def _usage_fault(error: Exception, *, as_json: bool) -> int:
    """A wrong command line: the parser's own message, and exit code 2. Anything else is a bug and stays loud."""
    from fewbit.cli import _output
    from fewbit.errors import UsageError

    format_message = getattr(error, "format_message", None)
    if format_message is None or not hasattr(error, "exit_code"):
        raise error
    message = format_message() or "a command is missing"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "fewbit"
    _output.show_error(UsageError(message, try_=f"`{command} --help`"), as_json=as_json)
    return 2
