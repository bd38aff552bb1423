# SPDX-License-Identifier: Apache-2.0
"""How the samples of a dataset differ from one another in names, dtypes, ranks and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.findings import DataReport
from fewbit.data.sample import Place

_SHOWN = 4
_NAMES = 100

Layout = tuple[tuple[str, ArrayInfo], ...]


class Layouts:
    """The layouts met so far, and who has which; what most files have is taken for right."""

    def __init__(self) -> None:
        self._known: dict[Layout, int] = {}
        self._counts: Counter[int] = Counter()
        self._files: list[tuple[str, int]] = []

    def number(self, infos: Mapping[str, ArrayInfo], *, stacked: bool) -> int:
        """The number of a layout; of a stack, that of its rows."""
        layout = tuple((key, info.row if stacked else info) for key, info in infos.items())
        return self._known.setdefault(layout, len(self._known))

    def count(self, name: str, number: int) -> None:
        """Count one file of a layout."""
        self._counts[number] += 1
        self._files.append((name, number))

    def odd_ones(self) -> dict[str, tuple[str, str]]:
        """Files whose array names or ranks are not those of the others: `{file: (code, message)}`."""
        return {name: faults[0] for name, faults in self._deviations(("keys-differ", "rank-differs")).items()}

    def report(self, report: DataReport, *, with_model: bool) -> None:
        """Put the differences into the report; names and ranks are the model's business when there is one."""
        codes = ("dtype-differs",) if with_model else ("keys-differ", "rank-differs", "dtype-differs")
        for name, faults in self._deviations(codes).items():
            for code, message in faults:
                report.add(code, message, Place(name))
        for key, shapes in self._shapes().items():
            if len(shapes) > 1 and len({len(shape) for shape in shapes}) == 1:
                shown = ", ".join(f"{list(shape)} in {count:,}" for shape, count in shapes.most_common(_SHOWN))
                more = ", …" if len(shapes) > _SHOWN else ""
                report.add("shape-differs", f"{key!r} has {len(shapes):,} shapes: {shown}{more}", Place(field=key))
        if not with_model and self._all_lead_with_one():
            report.add("batch-suspected", "every array of every sample begins with an axis of size 1")

    def summary(self) -> dict[str, str]:
        """The usual array under each name, in words."""
        found: dict[str, str] = {}
        for layout in sorted(self._known, key=lambda layout: -self._counts[self._known[layout]])[:_NAMES]:
            for key, info in layout[:_NAMES]:
                found.setdefault(key, str(info))
        return found

    def _shapes(self) -> dict[str, Counter[tuple[int, ...]]]:
        shapes: dict[str, Counter[tuple[int, ...]]] = {}
        for layout, number in self._known.items():
            for key, info in layout:
                shapes.setdefault(key, Counter())[info.shape] += self._counts[number]
        return shapes

    def _deviations(self, codes: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
        if len(self._known) < 2:
            return {}
        keys: Counter[frozenset[str]] = Counter()
        traits: dict[str, Counter[tuple[int, str]]] = {}
        for layout, number in self._known.items():
            keys[frozenset(key for key, _ in layout)] += self._counts[number]
            for key, info in layout:
                traits.setdefault(key, Counter())[(len(info.shape), info.dtype)] += self._counts[number]
        usual = keys.most_common(1)[0][0]
        by_number = {n: _compare(dict(layout), usual, traits, codes) for layout, n in self._known.items()}
        return {name: by_number[number] for name, number in self._files if by_number[number]}

    def _all_lead_with_one(self) -> bool:
        shapes = [info.shape for layout in self._known for _, info in layout]
        pictures = all(len(layout) == 1 and len(layout[0][1].shape) == 3 for layout in self._known)
        return bool(shapes) and not pictures and all(len(shape) > 1 and shape[0] == 1 for shape in shapes)


def _compare(
    infos: dict[str, ArrayInfo],
    usual: frozenset[str],
    traits: Mapping[str, Counter[tuple[int, str]]],
    codes: tuple[str, ...],
) -> list[tuple[str, str]]:
    found = []
    if infos.keys() != usual:
        lacking = ", ".join(sorted(usual - infos.keys()))
        beyond = ", ".join(sorted(infos.keys() - usual))
        parts = [f"lacks {lacking}" if lacking else "", f"has {beyond} besides" if beyond else ""]
        found.append(("keys-differ", f"{' and '.join(filter(None, parts))}, unlike most files"))
    for key in sorted(infos.keys() & usual):
        rank, dtype = traits[key].most_common(1)[0][0]
        if len(infos[key].shape) != rank:
            found.append(("rank-differs", f"{key!r} is {infos[key]}; in most files it has {rank} axes"))
        if infos[key].dtype != dtype:
            found.append(("dtype-differs", f"{key!r} is {infos[key].dtype}; in most files it is {dtype}"))
    return [fault for fault in found if fault[0] in codes]
