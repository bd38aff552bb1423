# SPDX-License-Identifier: Apache-2.0
"""`FILE.py:NAME`: the user's own Python code as data, as a format, or as a function.

Whatever fails inside it becomes a `UserCodeError` that shows the user's file and line, even if a library raised it.
Code is only ever loaded from a file on this machine that the user named: never from the hub, a URL or an archive.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from fewbit.data.types import Issue, IssueType, Location, SampleError, Severity
from fewbit.errors import FewbitError, Interface, UsageError, escape, nearest
from fewbit.rng import isolated

USER_CODE = IssueType(
    "user-code", Severity.ERROR, "error in your Python code", "correct the line shown", "raise", ("drop",),
    "leaves the sample out", ("element-failed",),
)  # fmt: skip

_REFERENCE = re.compile(r"(.+\.py):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_LIBRARIES = (
    f"{Path(__file__).resolve().parents[1]}{os.sep}",
    *(f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib")),
)
_LOADED: dict[tuple[str, int, int], ModuleType] = {}


def load_function(reference: str, *, param: str) -> Any:
    """What `FILE.py:NAME` names; a function then shows the user's line in errors, and can be sent to a worker process.

    Args:
        reference: as the user wrote it.
        param: the parameter that named it, for errors.
    """
    value = load_object(reference, param=param)
    return UserFunction(value, reference, param) if inspect.isfunction(value) else value


def load_object(reference: str, *, param: str | None) -> Any:
    """The object that `FILE.py:NAME` names, as it is.

    Args:
        reference: as the user wrote it.
        param: the option that named it, for errors; `None` if it was a key of a configuration.

    Raises:
        UsageError: there is no such file, or no such name in it.
        UserCodeError: the file itself fails.
    """
    parsed = parse_reference(reference)
    if parsed is None:
        raise UsageError(
            f"{reference!r} names no Python object", code="reference", param=param, expected="FILE.py:NAME",
            hint=f"{{{param}=my_code.py:my_function}}" if param else "my_code.py:my_function",
        )  # fmt: skip
    file, name = parsed
    value: Any = _load(file, reference, param)
    for attribute in name.split("."):
        if not hasattr(value, attribute):
            names = [key for key in getattr(value, "__dict__", ()) if not key.startswith("_")]
            raise UsageError(
                f"{file.name} defines no {name!r}", code="function-missing", param=param, where=reference,
                expected=", ".join(nearest(attribute, names) or names[:8]) or "a file that defines something",
                hint="check the spelling",
            )  # fmt: skip
        value = getattr(value, attribute)
    return value


def parse_reference(text: str) -> tuple[Path, str] | None:
    """File and name of `FILE.py:NAME`; `None` if the text is something else.

    >>> parse_reference("code/mine.py:tiles")[1], parse_reference("mine.py"), parse_reference("s3://b/mine.py:tiles")
    ('tiles', None, None)
    """
    match = _REFERENCE.fullmatch(text)
    return None if match is None or "://" in text else (Path(match[1]).expanduser(), match[2])


class UserFunction:
    """A function of the user's file; a worker process loads it again by its reference."""

    def __init__(self, function: Callable[..., Any], reference: str, param: str):
        self.__wrapped__, self.reference, self.param = function, reference, param
        self.__name__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with translated(self.__name__, self.__wrapped__):
            return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> Any:
        return partial(load_function, self.reference, param=self.param), ()


class UserCodeError(SampleError):
    """Code of the user that failed, with the innermost line of it that took part.

    Args:
        name: the function or object that failed.
        error: what it raised.
        function: where to point if not even its first line was reached.
        index: number of the sample that was read.
    """

    def __init__(self, name: str, error: BaseException, function: Any = None, index: int | None = None):
        file, line, inside = _user_line(error, function)
        message = f"{name} raised {type(error).__name__}: {str(error)[:300]}"
        super().__init__(Issue(USER_CODE, message, Location(file, line=line, index=index)))
        sample = f"sample {index}" if index is not None else ""
        self.where = ", ".join(filter(None, (f"{file}:{line}" if line else file, inside, sample)))
        self.source = _source_lines(file, line)

    def text(self, interface: Interface) -> str:
        """The complete message, followed by the source lines around the error."""
        return "\n".join([super().text(interface), *(f"    {escape(line)}" for line in self.source)])

    def to_dict(self, interface: Interface = "cli") -> dict[str, Any]:
        """JSON data for `--json`."""
        return {**super().to_dict(interface), "source": [escape(line) for line in self.source]}


@contextmanager
def user_code(name: str, function: Any = None, index: int | None = None) -> Iterator[None]:
    """Run code of the user: it draws from private random generators, and what it raises names its line.

    Args:
        name: how to call it in an error.
        function: where to point if not even its first line was reached.
        index: number of the sample; also the seed, so that every pass draws the same.
    """
    with translated(name, function, index), isolated(index or 0):
        yield


@contextmanager
def translated(name: str, function: Any = None, index: int | None = None) -> Iterator[None]:
    """Turn exceptions into a `UserCodeError`; the caller's random generators stay in use."""
    try:
        yield
    except (FewbitError, StopIteration):
        raise
    except Exception as error:
        raise UserCodeError(name, error, function, index) from error


def call(function: Callable[..., Any], arguments: Mapping[str, Any], *positional: Any, param: str) -> Any:
    """Call a function of the user with what it takes of some arguments.

    Args:
        function: may take fewer positional arguments than there are.
        arguments: by name, such as data options; a name it does not take is an error.
        positional: offered first, such as the path.
        param: the parameter that named the function.

    Raises:
        UsageError: it needs more, or does not take an argument.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return function(*positional, **arguments)
    parameters = signature.parameters.values()
    ordered = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    ordered = [parameter for parameter in ordered if parameter.name not in arguments]
    if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        positional = positional[: len(ordered)]
    try:
        signature.bind(*positional, **arguments)
    except TypeError as error:
        missing = [p.name for p in ordered[len(positional) :] if p.default is p.empty]
        hint = f"{{data_option={missing[0]}=VALUE}}" if missing else f"it takes {signature}"
        if missing and not positional:
            hint += f"; or read a path with it: {{data_format=FILE.py:{name}}}"
        raise UsageError(
            f"{name} cannot be called like this: {error}", code="function-arguments", param=param,
            where=f"{name}{signature}", expected="a function whose parameters are all given", hint=hint,
        ) from error  # fmt: skip
    with user_code(name, function):
        return function(*positional, **arguments)


def _load(file: Path, reference: str, param: str | None) -> ModuleType:
    """The file as a module with a unique name; loaded once until it changes."""
    try:
        status = file.stat()
        if not file.is_file():
            raise FileNotFoundError(file)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"there is no file {str(file)!r}", code="file-missing", param=param, where=reference,
            expected="a Python file on this machine", hint="check the spelling",
        ) from error  # fmt: skip
    path = os.path.realpath(file)
    key = (path, status.st_mtime_ns, status.st_size)
    if key in _LOADED:
        return _LOADED[key]
    name = f"fewbit_user_{re.sub(r'[^0-9a-zA-Z]', '_', file.stem)}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    earlier, no_bytecode = sys.modules.get(name), sys.dont_write_bytecode
    sys.modules[name] = module  # dataclasses of the file look themselves up here
    sys.path.insert(0, os.path.dirname(path))  # files next to it can be imported, as if it were run
    sys.dont_write_bytecode = True  # nothing is left next to the user's file
    try:
        with user_code(file.name):
            spec.loader.exec_module(module)
        _LOADED[key] = earlier = module
    finally:
        sys.dont_write_bytecode = no_bytecode
        sys.path.remove(os.path.dirname(path))
        if earlier is None:
            del sys.modules[name]
        else:
            sys.modules[name] = earlier
    return module


def _user_line(error: BaseException, function: Any) -> tuple[str, int | None, str]:
    """File, line and function of the innermost frame that is neither fewbit's nor a library's."""
    if isinstance(error, SyntaxError) and error.filename and not _is_library(error.filename):
        return _relative_path(error.filename), error.lineno, ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    if frames:
        inside = "" if frames[-1].name == "<module>" else f"in {frames[-1].name}"
        return _relative_path(frames[-1].filename), frames[-1].lineno, inside
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is not None and not _is_library(code.co_filename):
        return _relative_path(code.co_filename), code.co_firstlineno, "when it was called"
    return "", None, ""


def _is_library(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith("<frozen")  # otherwise a notebook, or standard input
    path = os.path.realpath(filename)
    return "site-packages" in path or "dist-packages" in path or path.startswith(_LIBRARIES)


def _relative_path(filename: str) -> str:
    """A path relative to the current folder, if it is below."""
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return filename


def _source_lines(file: str, line: int | None) -> list[str]:
    """The line, the one before and the one behind, numbered."""
    if not line:
        return []
    linecache.checkcache(file)
    texts = {number: linecache.getline(file, number).rstrip("\r\n") for number in range(max(line - 1, 1), line + 2)}
    if not texts[line + 1]:
        del texts[line + 1]
    width = len(str(line + 1))
    return [f"{'>' if number == line else ' '} {number:>{width}} | {text}".rstrip() for number, text in texts.items()]
