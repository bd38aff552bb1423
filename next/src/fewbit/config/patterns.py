# SPDX-License-Identifier: Apache-2.0
"""Which layers an entry names: an exact name, a glob (`*` also crosses dots), `re:REGEX`, or `type:OP`.

If several entries match a layer, the most specific one counts, in whatever order they are written: the exact name, then
regular expressions, the longest first, then globs, those with most literal characters first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from fewbit.errors import FewbitError, UsageError, nearest, raise_all

_WILDCARD = re.compile(r"\[[^]]*\]|[*?]")


def matches(pattern: str, name: str) -> bool:
    """Whether an entry names this layer.

    >>> matches("*.fc1", "layers.0.fc1"), matches(r"re:layers\\.\\d+\\.fc1", "layers.10.fc1")
    (True, True)
    """
    if pattern.startswith("re:"):
        return re.fullmatch(pattern[3:], name) is not None
    return pattern == name or fnmatchcase(name, pattern)


def is_pattern(entry: str) -> bool:
    """Whether an entry can name more than one layer."""
    return entry.startswith("re:") or _WILDCARD.search(entry) is not None


def covers(pattern: str, name: str) -> bool:
    """Whether an entry names this layer or a module that contains it."""
    return any(matches(pattern, outer) for outer in ancestors(name))


def ancestors(name: str) -> Iterator[str]:
    """A layer and every module that contains it.

    >>> list(ancestors("a.b.c"))
    ['a.b.c', 'a.b', 'a']
    """
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def most_specific(patterns: Iterable[str], name: str) -> str | None:
    """The entry that counts for a layer, if one matches."""
    return min((p for p in patterns if matches(p, name)), key=lambda p: _rank(p, name), default=None)


def _rank(pattern: str, name: str) -> tuple[int, int, str]:
    if pattern == name:
        return 0, 0, pattern
    if pattern.startswith("re:"):
        return 1, -len(pattern), pattern
    return 2, -len(_WILDCARD.sub("", pattern)), pattern


def pattern_problem(pattern: str) -> str | None:
    """Why an entry can never match, if so.

    >>> pattern_problem("re:(")
    "'re:(' is no regular expression: missing ), unterminated subpattern at position 0"
    """
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except re.error as error:
            return f"{pattern!r} is no regular expression: {error}"
    return None


@dataclass(frozen=True)
class Subgraph:
    """All layers on a path from one of `inputs` to one of `outputs`, both ends included."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        _set_names(self, ("inputs", "outputs"))
        if not self.inputs or not self.outputs:
            raise _wrong_scope("subgraphs", "a subgraph without inputs or outputs")

    def select(self, edges: Iterable[tuple[str, str]]) -> set[str]:
        """The layers of the subgraph, from a graph as pairs of producer and consumer.

        >>> sorted(Subgraph(["a"], ["c"]).select([("a", "b"), ("b", "c"), ("b", "d")]))
        ['a', 'b', 'c']
        """
        pairs = list(edges)
        return _reachable(self.inputs, pairs) & _reachable(self.outputs, [(b, a) for a, b in pairs])


@dataclass(frozen=True)
class IgnoredScope:
    """Layers that stay in float.

    Args:
        names: layers by exact name, glob, `re:` or `type:`, with everything inside them.
        patterns: regular expressions that a layer's name begins with, as in NNCF.
        types: layers of an operator or module type, subclasses included.
        subgraphs: parts of a graph, each with `inputs` and `outputs`.
        validate: whether an entry that matches nothing is an error.

    Raises:
        UsageError: values of a wrong type, expressions that do not compile.

    >>> scope = IgnoredScope(names=["lm_head"], patterns=[r".*\\.fc\\d"], types=["LayerNorm"])
    >>> scope.matches("layers.3.fc1", ["Linear"]), scope.matches("layers.3.out", ["Linear"])
    (True, False)
    """

    names: Sequence[str] = ()
    patterns: Sequence[str] = ()
    types: Sequence[Any] = ()
    subgraphs: Sequence[Any] = ()
    validate: bool = True

    def __post_init__(self) -> None:
        _set_names(self, ("names", "patterns", "types"))
        object.__setattr__(self, "subgraphs", tuple(_subgraph(part) for part in _listed(self.subgraphs)))
        entries = [("names", name) for name in self.names] + [("patterns", f"re:{p}") for p in self.patterns]
        raise_all([_wrong_scope(field, text) for field, entry in entries if (text := pattern_problem(entry))])

    @classmethod
    def of(cls, ignore: Any) -> IgnoredScope:
        """From whatever `ignore` takes: a text with commas, a list of entries, fields, or a scope of NNCF.

        >>> IgnoredScope.of("head, type:Conv").names
        ('head', 'type:Conv')
        """
        if isinstance(ignore, cls):
            return ignore
        if isinstance(ignore, str):
            entries = [ignore] if ignore.startswith("re:") else [part.strip() for part in ignore.split(",")]
            return cls(names=[entry for entry in entries if entry])
        known = [field.name for field in fields(cls)]
        if isinstance(ignore, Mapping):
            unknown = [str(name) for name in ignore if name not in known]
            raise_all([_wrong_scope(name, f"unknown; did you mean {nearest(name, known)}?") for name in unknown])
            return cls(**ignore)
        if hasattr(ignore, "names") and hasattr(ignore, "patterns"):
            return cls(**{name: getattr(ignore, name) for name in known if hasattr(ignore, name)})
        return cls(names=ignore)

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns or self.types or self.subgraphs)

    def matches(self, name: str, types: Sequence[str]) -> bool:
        """Whether a layer stays in float by its name or one of its types; subgraphs need the graph, see `select`."""
        kinds = {*self.types, *(entry[5:] for entry in self.names if entry.startswith("type:"))}
        return (
            any(covers(entry, name) for entry in self.names if not entry.startswith("type:"))
            or any(re.match(pattern, name) for pattern in self.patterns)
            or any(kind in kinds for kind in types)
        )

    def select(
        self, layers: Mapping[str, Sequence[str]], edges: Iterable[tuple[str, str]] | None = None
    ) -> tuple[str, ...]:
        """The layers that stay in float, in the order of the model.

        Args:
            layers: every layer's name, with the names of its types.
            edges: the graph as pairs of producer and consumer, if there is one.

        Raises:
            UsageError: subgraphs without a graph; every entry that matches nothing, with near names.
        """
        if self.subgraphs and edges is None:
            raise UsageError(
                "this model has no graph, so layers between two others are unknown", code="layer-graph", param="ignore",
                where="subgraphs", expected="names, patterns or types",
                hint="name the layers between; a module's name stands for everything inside it",
            )  # fmt: skip
        pairs = list(edges or ())
        parts = [subgraph.select(pairs) for subgraph in self.subgraphs]
        if self.validate:
            raise_all(self._unmatched(layers, parts))
        inside = set[str]().union(*parts)
        return tuple(name for name, types in layers.items() if name in inside or self.matches(name, types))

    def _unmatched(self, layers: Mapping[str, Sequence[str]], parts: Sequence[set[str]]) -> list[FewbitError]:
        modules = {outer for name in layers for outer in ancestors(name)}
        kinds = {kind for types in layers.values() for kind in types}
        errors: list[FewbitError] = []
        for entry in self.names:
            if entry.startswith("type:"):
                if entry[5:] not in kinds:
                    errors.append(_unknown(entry, nearest(entry[5:], kinds) or sorted(kinds)[:3]))
            elif entry not in modules and not any(matches(entry, name) for name in modules):
                errors.append(_unknown(entry, nearest(entry, sorted(modules))))
        errors += [_unknown(kind, nearest(kind, kinds)) for kind in self.types if kind not in kinds]
        for pattern in self.patterns:
            if not any(re.match(pattern, name) for name in layers):
                errors.append(_unknown(pattern, nearest(pattern, layers)))
        errors += [
            _unknown(f"subgraphs[{index}]", ["inputs and outputs that a path of the graph joins"])
            for index, part in enumerate(parts)
            if not part
        ]
        return errors


def _unknown(entry: str, similar: Sequence[str]) -> UsageError:
    return UsageError(
        f"no layer matches {entry!r}", code="layer-unknown", param="ignore",
        expected=", ".join(similar) or "a layer of the model", hint="`fewbit plan MODEL -v` lists every layer",
    )  # fmt: skip


def _set_names(owner: Any, names: Iterable[str]) -> None:
    """Make fields tuples of names; all errors at once."""
    errors: list[FewbitError] = []
    for name in names:
        value = _listed(getattr(owner, name))
        if not all(isinstance(item, str) for item in value):
            errors.append(_wrong_scope(name, f"{value!r}; expected names"))
        object.__setattr__(owner, name, value)
    raise_all(errors)


def _listed(value: Any) -> tuple[Any, ...]:
    """One item stands for a list of one, a class for its name."""
    if value is None:
        return ()
    single = isinstance(value, str | type | Mapping) or not isinstance(value, Iterable)
    return tuple(item.__name__ if isinstance(item, type) else item for item in ([value] if single else value))


def _subgraph(part: Any) -> Subgraph:
    """Subgraphs of other libraries are read by their fields."""
    if isinstance(part, Subgraph):
        return part
    ends = part if isinstance(part, Mapping) else {n: getattr(part, n, ()) for n in ("inputs", "outputs")}
    return Subgraph(ends.get("inputs", ()), ends.get("outputs", ()))


def _wrong_scope(field: str, text: str) -> UsageError:
    return UsageError(
        f"{field}: {text}", code="ignored-scope", param="ignore",
        expected="names, globs, re:REGEX or type:OP", hint="correct the entry",
    )  # fmt: skip


def _reachable(start: Iterable[str], edges: Sequence[tuple[str, str]]) -> set[str]:
    consumers: dict[str, list[str]] = {}
    for producer, consumer in edges:
        consumers.setdefault(producer, []).append(consumer)
    known = {name for edge in edges for name in edge}
    reached: set[str] = set()
    waiting = [name for name in start if name in known]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += consumers.get(name, ())
    return reached
