# SPDX-License-Identifier: Apache-2.0
"""Exported programs (`.pt2`) opened without running what they say.

`torch.export.load` unpickles sample inputs, some weights and custom objects, evaluates symbolic sizes as Python, and
loads compiled libraries. An archive that needs none of these is read; any other is refused before torch sees it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fewbit.errors import DataError

_MOST_JSON = 512 << 20
_OPERATOR = re.compile(r"(torch\.ops\.[a-z]\w*\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.(_sym_|sym_)\w+)")
_SYMBOL = re.compile(r"[a-z]+\d+")
_NODES = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
# What sizes are made of: sympy's own classes, and those of torch.utils._sympy.functions.
_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        """Symbol Integer Float Rational Half One Zero NegativeOne Add Mul Pow Abs Max Min Mod floor ceiling Piecewise
    Eq Ne Equality Unequality StrictLessThan StrictGreaterThan LessThan GreaterThan And Or Not true false
    FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural FloatPow
    FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat
    Identity""",
    )
)


def open_program(path: Path) -> Any:
    """The `ExportedProgram` of a `.pt2` file.

    Raises:
        DataError: a file that is no such archive, or whose loading would run code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            reason = next(_reasons(archive), None)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise _unreadable(path, error) from error
    if reason is not None:
        raise DataError(
            f"opening this program could run code: {reason}",
            code="model-unsafe",
            where=path,
            expected="plain tensors and operators, as torch.export.save writes them by default",
            try_="the tensors as .safetensors with --factory file.py:function",
        )
    try:
        return torch.export.load(str(path))
    except Exception as error:  # whatever a damaged archive makes torch raise
        raise _unreadable(path, error) from error


def _reasons(archive: zipfile.ZipFile) -> Iterator[str]:
    """Why an archive is not to be trusted."""
    names = archive.namelist()
    inner = {name.partition("/")[2]: name for name in names}
    if len(set(names)) != len(names) or len({name.partition("/")[0] for name in names}) != 1:
        yield "its list of files is ambiguous"
    if "archive_format" not in inner:
        raise ValueError("no archive of torch.export")
    for name, full in inner.items():
        if name.endswith(".json") and archive.getinfo(full).file_size > _MOST_JSON:
            yield f"{name} is larger than any program's"
        elif name.startswith("data/aotinductor/"):
            yield f"{name} is compiled code"
        elif name.startswith("data/sample_inputs/"):
            if not _only_tensors(archive.read(full)):
                yield f"{name} holds more than tensors"
        elif name.endswith("_config.json"):
            for key, entry in json.loads(archive.read(full))["config"].items():
                if entry["use_pickle"] or not str(entry["path_name"]).startswith(("weight_", "tensor_")):
                    yield f"{key} in {name} is pickled"
        elif name.startswith("models/"):
            yield from _unsafe_parts(json.loads(archive.read(full)))
        elif name.startswith(("data/weights/", "data/constants/")) and name.endswith(".pt"):
            yield f"{name} is pickled"


def _unsafe_parts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        expression, target = value.get("expr_str"), value.get("target")
        if isinstance(expression, str) and not _is_size(expression):
            yield f"the size {expression[:80]!r} is no arithmetic"
        if isinstance(target, str) and "inputs" in value and not _OPERATOR.fullmatch(target):
            yield f"{target[:80]!r} is no operator"
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _unsafe_parts(each)


def _is_size(expression: str) -> bool:
    """Whether a text is arithmetic on named sizes, and nothing else that Python could do.

    >>> _is_size("Add(Symbol('s77', positive=True), Integer(-1))"), _is_size("exit()")
    (True, False)
    """
    try:
        nodes = list(ast.walk(ast.parse(expression.strip(), mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    for node in nodes:
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Name) and node.id not in _FUNCTIONS and not _SYMBOL.fullmatch(node.id):
            return False
        if isinstance(node, ast.Constant) and not _is_number_or_symbol(node.value):
            return False
    return True


def _is_number_or_symbol(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and _SYMBOL.fullmatch(value) is not None)


def _only_tensors(content: bytes) -> bool:
    if not content:
        return True
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception:  # torch would try again without the restriction
        return False
    return True


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"the program cannot be read: {str(error)[:200] or type(error).__name__}",
        code="model-unreadable",
        where=path,
        expected="a file that torch.export.save wrote",
        try_="export it again with this version of torch",
    )
