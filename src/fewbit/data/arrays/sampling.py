# SPDX-License-Identifier: Apache-2.0
"""How the arrays of a file become samples: how many it holds, and what each looks like to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.fit import Fit, fit
from fewbit.data.arrays.npz_archive import Array
from fewbit.data.arrays.sample_files import NPY_KEY, Listing
from fewbit.data.signature import Signature

ANSWERS = frozenset({"label", "labels", "target", "targets", "y"})
"""Names that are taken for answers unless the model has an input of that name."""

_LAYOUTS = 4096
"""Beyond this many there is a layout a file, and no use in keeping them."""

Layout = tuple[tuple[str, ArrayInfo], ...]


def common_rows(infos: Mapping[str, ArrayInfo]) -> int | None:
    """How many samples a stack holds: the first axis that all arrays share, or `None` when it is no stack.

    >>> common_rows({"x": ArrayInfo((10, 3, 8, 8), "float32"), "y": ArrayInfo((10,), "int64")})
    10
    """
    firsts = {info.shape[:1] for info in infos.values()}
    first = firsts.pop() if len(firsts) == 1 else ()
    return first[0] if first else None


def looks_stacked(infos: Mapping[str, ArrayInfo]) -> bool:
    """Whether the arrays of a lone file are many samples, as far as shapes can tell.

    >>> looks_stacked({"x": ArrayInfo((3, 224, 224), "uint8")})
    False
    """
    rows = common_rows(infos)
    ranks = {len(info.shape) for info in infos.values()}
    picture = ranks == {3} and rows in (1, 3, 4)
    return rows is not None and max(ranks) > 1 and not picture


@dataclass
class Sampling:
    """One dataset's way from files to samples.

    Args:
        stacked: the first axis of every array counts samples.
        signature: the model's inputs, when a model is given.
        rename: array name to input name.
        targets: names of answers.
        follow: take an array for the input whose name it resembles, and say so.
        assumed: `stacked` is a guess from shapes alone.
    """

    stacked: bool = False
    signature: Signature | None = None
    rename: dict[str, str] = field(default_factory=dict)
    targets: frozenset[str] = ANSWERS
    follow: bool = False
    assumed: bool = False
    _fits: dict[Layout, Fit] = field(default_factory=dict, repr=False)

    @classmethod
    def decide(
        cls,
        listing: Listing,
        *,
        stacked: bool | None,
        signature: Signature | None,
        rename: Mapping[str, str] | None,
        targets: frozenset[str] = ANSWERS,
        follow: bool = False,
    ) -> Sampling:
        """Settle what was left open: whether a lone file is a stack."""
        made = cls(bool(stacked), signature, dict(rename or {}), targets, follow)
        if stacked is None and listing.single and listing.units:
            infos = listing.units[0].scan().infos
            if not infos:
                return made
            told = made.fit(infos)
            if told is not None and signature is not None and all(spec.shape is not None for spec in signature.inputs):
                made.stacked = told.rows > 1
            elif looks_stacked(infos):
                made.stacked = made.assumed = True
            made._fits.clear()
        return made

    def rows(self, infos: Mapping[str, ArrayInfo]) -> int:
        """How many samples a unit holds.

        Raises:
            ArrayFault: a stack whose arrays disagree.
        """
        if not self.stacked:
            told = self.fit(infos)
            return 1 if told is None else told.rows
        rows = common_rows(infos)
        if rows is None:
            there = ", ".join(f"{name}: {list(info.shape)}" for name, info in infos.items())
            raise ArrayFault("stack-uneven", f"the arrays of a stack differ in their first axis ({there})")
        return rows

    def fit(self, infos: Mapping[str, ArrayInfo]) -> Fit | None:
        """How a sample of this layout meets the model; worked out once a layout. `None` without a model."""
        if self.signature is None:
            return None
        layout = tuple(infos.items())
        if layout not in self._fits:
            if len(self._fits) > _LAYOUTS:
                self._fits.clear()
            seen = {name: info.row for name, info in layout} if self.stacked else dict(layout)
            self._fits[layout] = self._fit(seen, self.signature)
        return self._fits[layout]

    def _fit(self, seen: Mapping[str, ArrayInfo], signature: Signature) -> Fit:
        rename = dict(self.rename)
        if list(seen) == [NPY_KEY] and len(signature.inputs) == 1:
            rename.setdefault(NPY_KEY, signature.inputs[0].name)  # a `.npy` has no name that could be wrong
        told = fit(seen, signature, batched=False, rename=rename, targets=self.targets)
        if not (self.follow and told.suggestions):
            return told
        names = tuple(problem for problem in told.problems if problem.code == "input-name")
        told = fit(seen, signature, batched=False, rename={**rename, **told.suggestions}, targets=self.targets)
        return replace(told, problems=names + told.problems)

    def shape(self, arrays: Mapping[str, Array], told: Fit | None, row: int) -> dict[str, Array]:
        """One sample: the model's inputs first, then the answers.

        Args:
            arrays: a whole unit, or one row of a stack.
            told: the unit's fit.
            row: which sample of a unit that the fit splits.

        Raises:
            DataError: a value does not fit the input's dtype.
        """
        if told is None:
            return {self.rename.get(name, name): array for name, array in arrays.items()}
        inputs = told.apply(arrays, row)
        answers = {name: arrays[name] for name in arrays if name in self.targets and name not in inputs}
        for name, array in answers.items():
            if told.rows > 1 and array.shape[:1] == (told.rows,):
                answers[name] = array[row]
        return inputs | answers
