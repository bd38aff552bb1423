# SPDX-License-Identifier: Apache-2.0
"""`IgnoredScope`: layers that stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fewbit.errors import UsageError
from fewbit.schemes.faults import Fault, closest, no_field, refuse
from fewbit.schemes.patterns import covers, fault_of, lineage, matches


@dataclass(frozen=True)
class Subgraph:
    """Everything on a path from one of `inputs` to one of `outputs`, both ends included."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def inside(self, edges: Iterable[tuple[str, str]]) -> set[str]:
        """The layers of the subgraph, from a graph as pairs of producer and consumer.

        >>> sorted(Subgraph(("a",), ("c",)).inside([("a", "b"), ("b", "c"), ("b", "d")]))
        ['a', 'b', 'c']
        """
        pairs = list(edges)
        down = _reached(self.inputs, pairs)
        return down & _reached(self.outputs, [(b, a) for a, b in pairs])


@dataclass(frozen=True, init=False)
class IgnoredScope:
    """Layers that stay as they are.

    Args:
        names: layers by name or glob, with everything inside them.
        patterns: regular expressions that a layer's name starts with.
        types: layers of a type, subclasses included.
        subgraphs: parts of a graph, each with `inputs` and `outputs`.
        validate: whether an entry that matches nothing is an error.

    >>> scope = IgnoredScope(names=["lm_head"], patterns=[r".*\\.fc\\d"], types=["LayerNorm"])
    >>> scope.matches("layers.3.fc1", ["Linear"]), scope.matches("layers.3.out", ["Linear"])
    (True, False)
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    types: tuple[str, ...]
    subgraphs: tuple[Subgraph, ...]
    validate: bool

    def __init__(
        self,
        /,
        names: Sequence[str] = (),
        patterns: Sequence[str] = (),
        types: Sequence[Any] = (),
        subgraphs: Sequence[Any] | None = (),
        validate: bool = True,
        **unknown: Any,
    ):
        faults = [no_field(f"IgnoredScope.{name}", name, [field.name for field in fields(self)]) for name in unknown]
        values: dict[str, Any] = {
            "names": _texts("names", names, faults),
            "patterns": _texts("patterns", patterns, faults),
            "types": _texts("types", types, faults),
            "subgraphs": tuple(_subgraph(i, part, faults) for i, part in enumerate(_listed(subgraphs))),
            "validate": bool(validate),
        }
        for i, pattern in enumerate(values["patterns"]):
            wrong = fault_of(f"re:{pattern}")
            if wrong:
                faults.append(Fault(f"IgnoredScope.patterns[{i}]", wrong, "a regular expression"))
        refuse(faults, "an IgnoredScope")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def matches(self, name: str, types: Sequence[str]) -> bool:
        """Whether a layer stays as it is, by name or type; subgraphs need the whole graph, see `select`."""
        return (
            any(covers(entry, name) for entry in self.names)
            or any(re.match(pattern, name) for pattern in self.patterns)
            or any(kind in self.types for kind in types)
        )

    def select(
        self, layers: Mapping[str, Sequence[str]], edges: Iterable[tuple[str, str]] | None = None
    ) -> tuple[str, ...]:
        """The layers that stay as they are, in the model's order.

        Args:
            layers: every layer's name with the names its type answers to.
            edges: the graph as pairs of producer and consumer, where the backend has one.

        Raises:
            UsageError: subgraphs without a graph; with `validate`, every entry that matches nothing, with the nearest
                names there are.
        """
        if self.subgraphs and edges is None:
            raise UsageError(
                "this backend has no graph, so nothing can be said to lie between two layers",
                where="IgnoredScope.subgraphs",
                expected="names, patterns or types",
                try_="name what lies between; a name stands for everything inside it",
            )
        graph = list(edges or ())
        within = [part.inside(graph) for part in self.subgraphs]
        if self.validate:
            refuse(self._idle(layers, within), "the ignored scope")
        inner = set().union(*within)
        return tuple(name for name, types in layers.items() if name in inner or self.matches(name, types))

    def _idle(self, layers: Mapping[str, Sequence[str]], within: Sequence[set[str]]) -> list[Fault]:
        outer = {part for name in layers for part in lineage(name)}
        kinds = sorted({kind for types in layers.values() for kind in types})
        nothing = "matches nothing in the model"
        faults = [
            Fault("IgnoredScope.names", f"{name!r} {nothing}", closest(name, sorted(outer)))
            for name in self.names
            if not any(matches(name, each) for each in outer)
        ]
        faults += [
            Fault("IgnoredScope.types", f"{kind!r} {nothing}", closest(kind, kinds))
            for kind in self.types
            if kind not in kinds
        ]
        faults += [
            Fault("IgnoredScope.patterns", f"{pattern!r} {nothing}", closest(pattern, layers), "validate=False")
            for pattern in self.patterns
            if not any(re.match(pattern, name) for name in layers)
        ]
        for i, found in enumerate(within):
            if not found:
                expected = "inputs and outputs that a path of the model's graph joins"
                faults.append(Fault(f"IgnoredScope.subgraphs[{i}]", f"it {nothing}", expected, "names or patterns"))
        return faults


def _texts(field: str, given: Any, faults: list[Fault]) -> tuple[str, ...]:
    texts = tuple(item.__name__ if isinstance(item, type) and field == "types" else item for item in _listed(given))
    if not all(isinstance(item, str) for item in texts):
        faults.append(Fault(f"IgnoredScope.{field}", repr(given), "a list of texts"))
        return ()
    return texts


def _listed(given: Any) -> list[Any]:
    """The items of a list; one item alone stands for a list of one."""
    if given is None:
        return []
    one = isinstance(given, str | type | Mapping) or not isinstance(given, Iterable)
    return [given] if one else list(given)


def _subgraph(index: int, given: Any, faults: list[Fault]) -> Subgraph:
    part = given if isinstance(given, Mapping) else {n: getattr(given, n, None) for n in ("inputs", "outputs")}
    ends = [part.get(name) for name in ("inputs", "outputs")]
    if not all(isinstance(end, list | tuple) and end and all(isinstance(n, str) for n in end) for end in ends):
        faults.append(Fault(f"IgnoredScope.subgraphs[{index}]", repr(given), "`inputs` and `outputs`, lists of names"))
        return Subgraph((), ())
    return Subgraph(tuple(ends[0]), tuple(ends[1]))  # type: ignore[arg-type]


def _reached(start: Iterable[str], edges: Sequence[tuple[str, str]]) -> set[str]:
    following: dict[str, list[str]] = {}
    for a, b in edges:
        following.setdefault(a, []).append(b)
    known = {name for edge in edges for name in edge}
    reached: set[str] = set()
    waiting = [name for name in start if name in known]
    while waiting:
        here = waiting.pop()
        if here not in reached:
            reached.add(here)
            waiting += following.get(here, ())
    return reached
