# SPDX-License-Identifier: Apache-2.0
"""Whether worker processes can start: one clear error before the first one, instead of a traceback in each.

With `fork` a worker is a copy of this process and always starts. With `spawn` and `forkserver` it is a new interpreter
that imports the main script again and receives the data by pickle; both can fail, and both are checked first.
"""

from __future__ import annotations

import ast
import multiprocessing
import pickletools
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FrameType
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
    method = start_method or multiprocessing.get_start_method(allow_none=True) or _default_method()
    if method not in multiprocessing.get_all_start_methods():
        raise _error(f"this platform cannot {method} processes", f"start_method='spawn', or {_NO_WORKERS}")
    if method == "fork":
        return method
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    by_name = getattr(getattr(main, "__spec__", None), "name", None) is not None
    reruns = by_name or file is not None
    if file is not None and not by_name and not Path(file).is_file():
        raise _error(
            f"a worker process would run the main script {file!r} again, which is no file",
            f"save the script as a file, or {_NO_WORKERS}",
        )
    if reruns and file is not None and not _guarded(Path(file), sys._getframe(1)):
        raise _error(
            f"a worker process would run {Path(file).name} again from its first line",
            f"put the code of {Path(file).name} under `if __name__ == '__main__':`, or {_NO_WORKERS}",
        )
    try:
        content = bytes(ForkingPickler.dumps(payload))
    except Exception as error:  # whatever an object raises that cannot be pickled
        raise _error(
            f"the data cannot be sent to a worker process: {type(error).__name__}: {error}",
            f"use functions of a module instead of lambdas and local ones, or {_NO_WORKERS}",
        ) from error
    for module in sorted(_modules(content)):
        if module == "__main__" and not reruns:
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


def _default_method() -> str:
    return multiprocessing.get_all_start_methods()[0]


def _guarded(file: Path, frame: FrameType | None) -> bool:
    """Whether the line of the main script that led here is under `if __name__ == "__main__":`."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    if frame is None:  # called from a thread, or the main script has finished
        return True
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    for node in tree.body:
        if isinstance(node, ast.If) and node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno):
            return any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test))
    return False


def _modules(content: bytes) -> set[str]:
    """Modules that a pickle imports from; a repeated name is a reference to the pickle's memo."""
    modules: set[str] = set()
    memo: dict[int, str] = {}
    pushed: list[str] = []  # the texts on the stack, in order; of other values only that they are no text
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "GLOBAL":
            modules.add(str(argument).split(" ")[0])
        elif opcode.name == "STACK_GLOBAL":
            modules.add(pushed[-2] if len(pushed) > 1 else "")
            pushed.append("")
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = pushed[-1] if pushed else ""
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            pushed.append(memo.get(argument if isinstance(argument, int) else -1, ""))
        else:
            pushed.append(argument if isinstance(argument, str) else "")
    return modules - {""}


def _importable(module: str) -> bool:
    """Whether a new process finds a module by its name: a file that was loaded by hand is not found."""
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(finder.find_spec(top, None) is not None for finder in finders)


def _error(problem: str, hint: str) -> UsageError:
    return UsageError(problem, code="workers", param="workers", expected="workers that can start", hint=hint)
