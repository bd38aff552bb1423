# SPDX-License-Identifier: Apache-2.0
"""What the description of an exported program may say.

torch turns it into Python: sizes are evaluated, operators looked up by name, the names of values and parameters written
into source that is compiled, and the trees of inputs and outputs import what they name. So every text in it has to be
of a kind that can do no more than it should; texts that torch only keeps are free.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload

_SYMBOL = re.compile(r"[a-z]+\d+")
_WORD = re.compile(r"[\w.\-]*")
_PATH = re.compile(r"""[^"'\\\x00-\x1f\x7f]*""")  # stands between quotes in the source
_FREE = ("metadata", "guards_code", "as_string", "as_strings", "torch_version")
_PATHS = ("fqn", "parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name")
_PURE = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|truediv|mod|pow|and_|or_|lshift|rshift|getitem)"
    r"|math\.[a-z]\w*|torch\._?sym_\w+"
)
_IN_TORCH = re.compile(r"torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)(\.(?P<overload>\w+))?")
# Operators on graphs; those left out call objects, compiled code or assembly.
_ON_GRAPHS = re.compile(
    "associative_scan|auto_functionalized(_v2)?|cond|flex_attention|hints_wrapper|invoke_subgraph|map_impl|out_dtype|scan"
    "|strict_mode|tag_activation_checkpoint|while_loop|with_effects|wrap(_activation_checkpoint)?"
    "|wrap_with_(autocast|set_grad_enabled)"
)
_EMPTY_VALUES = ("list", "dict", "set", "int", "float", "str")
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


def unsafe_parts(description: Any) -> Iterator[str]:
    """Why a description, as JSON gives it, is not to be trusted."""
    waiting: list[tuple[str, Any]] = [("", description)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            words = () if key in ("metadata", "as_string_to_argument") else value
            yield from (f"{word[:80]!r} is no name" for word in words if not _WORD.fullmatch(word))
            # Only texts right below are free: what else is called `metadata` is looked at like the rest.
            waiting += [(key if key == "metadata" and isinstance(v, str) else k, v) for k, v in value.items()]
        elif isinstance(value, list):
            waiting += [(key, each) for each in value]
        elif isinstance(value, str) and key not in _FREE:
            yield from _faults(key, value)


def is_path(name: str) -> bool:
    """Whether a name can be that of a parameter, with dots between the modules it is in, and nothing else."""
    return _PATH.fullmatch(name) is not None


def _faults(key: str, text: str) -> Iterator[str]:
    if key in ("in_spec", "out_spec"):
        yield from _unsafe_tree(text, key)
    elif key == "expr_str":
        if not is_size(text):
            yield f"the size {text[:80]!r} is no arithmetic"
    elif key in ("target", "as_operator"):
        if not _is_operator(text):
            yield f"{text[:80]!r} is no operator"
    elif not (is_path(text) if key in _PATHS else _is_word(text)):
        yield f"{text[:80]!r} is no name"


def _is_operator(target: str) -> bool:
    """Whether a text names a computation: one that calls nothing it is given, and opens no file."""
    if _PURE.fullmatch(target):
        return True
    named = _IN_TORCH.fullmatch(target)
    if named is None:
        return False
    space, name, overload = named["space"], named["name"], named["overload"]
    if space == "higher_order":
        return overload is None and _ON_GRAPHS.fullmatch(name) is not None
    if overload is None or space == "debugprims":
        return False
    found: Any = getattr(getattr(getattr(torch.ops, space), name, None), overload, None)
    if found is None:
        return True  # of a library that is not imported here: torch says so
    return isinstance(found, OpOverload) and not _takes_file(found)


def _takes_file(operator: OpOverload) -> bool:
    texts = [each.name.lower() for each in operator._schema.arguments if "str" in str(each.type)]
    return any("file" in name or "path" in name for name in texts)


def _unsafe_tree(text: str, key: str) -> Iterator[str]:
    """How a tree of inputs or outputs would import something, or write more than names into the call's signature."""
    _, root = json.loads(text)
    if key == "in_spec" and len(root["children_spec"]) > 1:
        words = _context(root["children_spec"][1])
        yield from (f"{word!r} is no name" for word in words or () if not _is_word(word))
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting += node["children_spec"]
        inside = [_context(node)]
        while inside:
            value = inside.pop()
            if isinstance(value, dict):
                module, name = value.get("default_factory_module"), value.get("default_factory_name")
                if "__enum__" in value or (module is not None and (module != "builtins" or name not in _EMPTY_VALUES)):
                    yield f"{key} names {value.get('fqn') or f'{module}.{name}'}, which would be imported"
                inside += value.values()
            elif isinstance(value, list):
                inside += value


def _context(node: Any) -> Any:
    context = node["context"]
    try:
        return json.loads(context) if isinstance(context, str) else context
    except ValueError:
        return None  # the name of a class, which is looked up among those that are known


def _is_word(value: object) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def is_size(expression: str) -> bool:
    """Whether a text is arithmetic on named sizes, and nothing else that Python could do.

    >>> is_size("Add(Symbol('s77', positive=True), Integer(-1))"), is_size("exit()")
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
