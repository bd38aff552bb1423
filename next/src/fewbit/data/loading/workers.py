# SPDX-License-Identifier: Apache-2.0
"""Whether worker processes can start: one clear error before the first one, instead of a traceback in each.

With `fork` a worker is a copy of this process and always starts. With `spawn` and `forkserver` it is a new interpreter
that imports the main script again and receives the data by pickle; both can fail, and both are checked first.
"""

from __future__ import annotations

import ast
import io
import multiprocessing
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from fewbit.errors import UsageError

_NO_WORKERS = "workers=0 prepares batches in this process"


def check_workers(payload: Any, start_method: str | None = None) -> str:
    """Make sure that worker processes can start.

    Args:
        payload: what they are sent.
        start_method: `fork`, `spawn` or `forkserver`; the platform's by default.

    Returns:
        The start method.

    Raises:
        UsageError: they cannot, with the reason and what to do.
    """
    methods = multiprocessing.get_all_start_methods()  # the platform's own comes first
    method = start_method or multiprocessing.get_start_method(allow_none=True) or methods[0]
    if method not in methods:
        raise _error(f"this platform cannot {method} processes", f"start_method='spawn', or {_NO_WORKERS}")
    if method == "fork":
        return method
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if script is not None and getattr(main, "__spec__", None) is None and not Path(script).is_file():
        raise _error(
            f"a worker process would run the main script {script!r} again, which is no file",
            f"save the script as a file, or {_NO_WORKERS}",
        )
    if script is not None and not _guarded(Path(script)):
        name = Path(script).name
        raise _error(
            f"a worker process would run {name} again from its first line",
            f"put the code of {name} under `if __name__ == '__main__':`, or {_NO_WORKERS}",
        )
    try:
        recorder = _ModuleRecorder(io.BytesIO())
        recorder.dump(payload)
    except Exception as error:  # whatever an object raises that cannot be pickled
        raise _error(
            f"the data cannot be sent to a worker process: {type(error).__name__}: {error}",
            f"use functions of a module instead of lambdas and local ones, or {_NO_WORKERS}",
        ) from error
    for module in sorted(recorder.modules):
        if module == "__main__" and script is None:
            raise _error(
                "a worker process cannot find what is defined in a notebook, on standard input or by -c",
                f"put the collator and functions into a .py file and import them, or {_NO_WORKERS}",
            )
        if module != "__main__" and not _importable(module):
            raise _error(
                f"a worker process cannot import {module!r}, which was loaded from a file",
                f"name functions as FILE.py:FUNCTION, or {_NO_WORKERS}",
            )
    return method


class _ModuleRecorder(ForkingPickler):
    """Pickles, and notes from which modules functions and classes would be imported."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or hasattr(value, "__qualname__"):
            self.modules.add(str(getattr(value, "__module__", None) or "builtins"))
        return NotImplemented


def _guarded(script: Path) -> bool:
    """Whether the line of the main script that led here is under `if __name__ == "__main__":`."""
    frame = sys._getframe(1)
    while not (frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>"):
        if frame.f_back is None:  # called from a thread, or the main script has finished
            return True
        frame = frame.f_back
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    for node in tree.body:
        if isinstance(node, ast.If) and node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno):
            return any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test))
    return False


def _importable(module: str) -> bool:
    """Whether a new process finds a module by its name: a file that was loaded by hand is not found."""
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _error(problem: str, hint: str) -> UsageError:
    return UsageError(problem, code="workers", param="workers", expected="workers that can start", hint=hint)
