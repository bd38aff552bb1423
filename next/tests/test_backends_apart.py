# SPDX-License-Identifier: Apache-2.0
"""Only `backends/` and `targets/` know the backends by name; everything else asks for facts."""

import ast
from pathlib import Path

import pytest

import fewbit
from fewbit import registry

SOURCE = Path(fewbit.__file__).parent
NAMES = frozenset(registry.names("backends"))
FILES = [
    path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in ("backends", "targets")
]


def names_of_backends(tree: ast.AST) -> list[str]:
    """Every comparison of a backend with its name, and every import of one, as `line: text`."""
    return [f"{node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if _compares(node) or _imports(node)]


def _compares(node: ast.AST) -> bool:
    """Whether a backend and the name of one meet in a comparison, a lookup or a `match`."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Subscript):
        sides = [node.value, node.slice]
    elif isinstance(node, ast.Match):
        sides = [node.subject, *(case.pattern for case in node.cases)]
    else:
        return False
    constants = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
    words = {part.attr for side in sides for part in ast.walk(side) if isinstance(part, ast.Attribute)}
    words |= {part.id for side in sides for part in ast.walk(side) if isinstance(part, ast.Name)}
    return bool(constants & NAMES) and bool(words & {"backend", "backend_name"})


def _imports(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        return False
    parts = [module.split(".") for module in modules]
    return any(part[:2] == ["fewbit", "backends"] and NAMES.intersection(part[2:3]) for part in parts)


@pytest.mark.parametrize(
    "text",
    [
        'info.backend == "torch"', 'model.info.backend not in ("onnx", "openvino")', 'backend.name != "litert"',
        '{"torch": 1}[info.backend]', "from fewbit.backends.torch.factory import build",
        "from fewbit.backends import onnx", "import fewbit.backends.litert",
        'match info.backend:\n    case "torch":\n        pass',
    ],
)  # fmt: skip
def test_what_is_looked_for_is_found(text):
    assert len(names_of_backends(ast.parse(text))) == 1


def test_what_is_allowed():
    text = (
        'from fewbit.backends import find_backend\nrequire("torch")\nbackend="torch"\nextra == "torch"\nmember.backends'
    )
    assert {"torch", "onnx", "litert"} <= NAMES and not names_of_backends(ast.parse(text))


def test_nothing_else_asks_for_a_backend_by_name():
    hits = {str(path.relative_to(SOURCE)): names_of_backends(ast.parse(path.read_bytes())) for path in FILES}
    assert len(FILES) > 150 and not {name: lines for name, lines in hits.items() if lines}
