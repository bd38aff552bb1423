# SPDX-License-Identifier: Apache-2.0
"""`fewbit list [KIND]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fewbit import registry
from fewbit.cli.surface import Surface
from fewbit.errors import UsageError, nearest

Row = tuple[str, str]


def run(values: dict[str, Any], surface: Surface) -> int:
    """Print the members of one kind, or the kinds with their counts."""
    kind = values["kind"]
    if kind is None:
        rows = [(name, str(len(rows_of(values)))) for name, rows_of in KINDS.items()]
    else:
        key = kind.lower().replace("_", "-")
        if key not in KINDS:
            raise UsageError(
                f"there is no kind {kind!r}", code="kind-unknown",
                expected=", ".join(nearest(kind, KINDS) or KINDS), hint="fewbit list",
            )  # fmt: skip
        rows = KINDS[key](values)
    if surface.json:
        surface.print_json(
            surface.document(0, record={"kind": kind, "rows": [{"name": n, "text": t} for n, t in rows]})
        )
        return 0
    width = max((len(name) for name, _ in rows), default=0)
    surface.print("\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows))
    return 0


def _presets(values: dict[str, Any]) -> list[Row]:
    names = [values["target"]] if values["target"] else list(registry.names("targets"))
    rows: dict[str, list[str]] = {}
    for name in names:
        target = registry.get("targets", name, param="target")
        for preset in sorted(target.presets):
            rows.setdefault(preset, []).append(target.name)
        for alias, preset in target.aliases.items():
            rows.setdefault(f"{alias} = {preset}", []).append(target.name)
    return [(name, ", ".join(targets)) for name, targets in sorted(rows.items())]


def _targets(values: dict[str, Any]) -> list[Row]:
    return [(target.name, target.title) for target in registry.members("targets").values()]


def _formats(values: dict[str, Any]) -> list[Row]:
    backends = registry.members("backends")
    return [(name, f"written for {backend.suffixes[0]} models") for name, backend in backends.items() if backend.edits]


def _data_formats(values: dict[str, Any]) -> list[Row]:
    return [(format.name, f"{format.title}: {format.layout}") for format in registry.members("data_formats").values()]


def _tasks(values: dict[str, Any]) -> list[Row]:
    from fewbit.data.tasks import TASKS

    return [(task.name, f"also {', '.join(task.aliases)}" if task.aliases else "") for task in TASKS.values()]


def _devices(values: dict[str, Any]) -> list[Row]:
    import importlib.util
    import os

    rows = [("cpu", f"{os.cpu_count()} cores")]
    if importlib.util.find_spec("torch") is not None:
        import torch

        rows += [(f"cuda:{i}", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
        rows += [("mps", "Apple GPU")] if torch.backends.mps.is_available() else []
    return rows


def _issues(values: dict[str, Any]) -> list[Row]:
    from fewbit.data.issues import issue_types

    rows = []
    for name, kinds in issue_types().items():
        if values["data_format"] in (None, name):
            rows += [(kind.code, f"{name}: {kind.severity}, {kind.meaning}") for kind in kinds]
    return rows


KINDS: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "presets": _presets,
    "targets": _targets,
    "formats": _formats,
    "data-formats": _data_formats,
    "tasks": _tasks,
    "devices": _devices,
    "issues": _issues,
}
"""Kinds that have members today; metrics, methods, algorithms, observers and datasets come with their verbs."""
