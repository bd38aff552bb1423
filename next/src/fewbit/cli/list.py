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
    key = None if kind is None else kind.lower().replace("_", "-")
    kinds = {**KINDS, **{name: _registered for name in registry.KINDS if name in _COMING}}
    if key is not None and key not in kinds:
        raise UsageError(
            f"{key} are not listed yet" if key in _COMING else f"there is no kind {kind!r}", code="kind-unknown",
            expected=", ".join(kinds), hint=f"fewbit list {(nearest(key, kinds) or ['presets'])[0]}",
        )  # fmt: skip
    for name, owner in (("data_format", "issues"), ("target", "presets")):
        if values[name] is not None and key != owner:
            raise UsageError(
                f"{{{name}}} has no effect without the kind {owner}", code="option-unused", param=name,
                hint=f"fewbit list {owner} --{name.replace('_', '-')} {values[name]}",
            )  # fmt: skip
    if key is None:
        rows = [(name, f"{len(rows_of({**values, 'kind': name})):,}") for name, rows_of in kinds.items()]
    else:
        rows = kinds[key]({**values, "kind": key})
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
        for preset in target.presets:
            rows.setdefault(preset, []).append(target.name)
        for alias, preset in target.aliases.items():
            rows.setdefault(alias, []).append(f"{target.name}: {preset}")
    return [(name, ", ".join(targets)) for name, targets in sorted(rows.items())]


def _targets(values: dict[str, Any]) -> list[Row]:
    return [(target.name, target.title) for target in registry.members("targets").values()]


def _formats(values: dict[str, Any]) -> list[Row]:
    backends = registry.members("backends")
    rows = [(name, f"written for {backend.suffixes[0]} models") for name, backend in backends.items() if backend.edits]
    checkpoints = registry.members("checkpoints").items()
    return rows + [(name.replace("_", "-"), (item.__doc__ or "").split("\n")[0]) for name, item in checkpoints]


def _data_formats(values: dict[str, Any]) -> list[Row]:
    rows = []
    for format in registry.members("data_formats").values():
        rows.append((format.name, f"{format.title}: {format.layout}"))
        if values.get("verbose"):
            rows += [("", f"--data-option {option.name}=…  {option.help}") for option in format.options]
    return rows


def _tasks(values: dict[str, Any]) -> list[Row]:
    from fewbit.data.tasks import TASKS

    return [(task.name, f"also {', '.join(task.aliases)}" if task.aliases else "") for task in TASKS.values()]


def _devices(values: dict[str, Any]) -> list[Row]:
    import importlib.util
    import os

    from fewbit.errors import plural

    rows = [("cpu", plural(os.cpu_count() or 1, "core"))]
    if importlib.util.find_spec("torch") is not None:
        import torch

        rows += [(f"cuda:{i}", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
        rows += [("mps", "Apple GPU")] if torch.backends.mps.is_available() else []
    return rows


def _datasets(values: dict[str, Any]) -> list[Row]:
    from fewbit.data.hub import CORPORA

    return [(name, f"{corpus.hub} on the hub, or {name}=PATH") for name, corpus in CORPORA.items()]


def _issues(values: dict[str, Any]) -> list[Row]:
    """One row per code; with `--data-format` those of one format."""
    from fewbit.data.issues import issue_types

    wanted = values["data_format"]
    if wanted is not None:
        wanted = registry.get("data_formats", wanted, param="data_format").name
    kinds = {kind.code: kind for name, kinds in issue_types().items() if wanted in (None, name) for kind in kinds}
    return [(kind.code, f"{kind.severity}: {kind.meaning}") for kind in kinds.values()]


def _registered(values: dict[str, Any]) -> list[Row]:
    """Members of a registry, each with the first line of what it says of itself; algorithms by their stage."""
    rows = []
    for name, member in registry.members(values["kind"]).items():
        text = (getattr(member, "title", None) or member.__doc__ or "").split("\n")[0]
        rows.append((name, f"{member.stage}: {text}" if hasattr(member, "stage") else text))
    return rows


KINDS: dict[str, Callable[[dict[str, Any]], list[Row]]] = {
    "presets": _presets, "targets": _targets, "formats": _formats, "data-formats": _data_formats, "tasks": _tasks,
    "devices": _devices, "datasets": _datasets, "issues": _issues,
}  # fmt: skip
_COMING = ("metrics", "methods", "algorithms", "observers")
"""Kinds that are listed as soon as a registry of that name has members."""
