# SPDX-License-Identifier: Apache-2.0
"""How the arrays of a file become samples: how many it holds, and what each looks like to the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fewbit.data.arrays.description import ArrayInfo
from fewbit.data.arrays.faults import ArrayFault
from fewbit.data.arrays.fit import fit
from fewbit.data.arrays.fitted import Fit
from fewbit.data.arrays.input_names import ANSWERS
from fewbit.data.arrays.npz_archive import Array
from fewbit.data.arrays.sample_files import NPY_KEY, Listing, UnitScan
from fewbit.data.signature import Signature

_ANYTHING = Signature("none", (), open_ended=True)
"""What stands in for a model where none is given: it takes every array under its own name."""


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
        assumed: `stacked` is a guess from shapes alone.
    """

    stacked: bool = False
    signature: Signature | None = None
    rename: dict[str, str] = field(default_factory=dict)
    targets: frozenset[str] = ANSWERS
    assumed: bool = False

    @classmethod
    def decide(
        cls,
        listing: Listing,
        *,
        stacked: bool | None,
        signature: Signature | None,
        rename: Mapping[str, str] | None,
        targets: Collection[str] | None,
    ) -> Sampling:
        """Settle what was left open: whether a lone file is a stack, and which names are answers.

        In a folder and in a `.tar` a file is one sample, whatever its shape.
        """
        answers = ANSWERS if targets is None else frozenset(targets)
        made = cls(bool(stacked), signature, dict(rename or {}), answers)
        if stacked is None and listing.may_be_a_stack:
            found = listing.units[0].scan()
            if signature is not None and all(spec.shape is not None for spec in signature.inputs):
                made.stacked = bool(found.infos) and (made.fit(found).rows > 1 or made._fits_in_rows(found))
            elif found.infos and looks_stacked(found.infos):
                made.stacked = made.assumed = True
        return made

    def _fits_in_rows(self, found: UnitScan) -> bool:
        """Whether a file that does not fit the model holds a stack of samples that do."""
        rows = replace(self, stacked=True)
        return bool(self.fit(found).errors) and common_rows(found.infos) is not None and not rows.fit(found).errors

    def rows(self, found: UnitScan) -> int:
        """How many samples a unit holds.

        Raises:
            ArrayFault: a stack whose arrays disagree.
        """
        held = self.fit(found).rows
        if not self.stacked:
            return held
        if held > 1:
            raise ArrayFault("stack-uneven", f"each entry of the first axis holds {held} samples once more")
        rows = common_rows(found.infos)
        if rows is None:
            there = ", ".join(f"{name}: {list(info.shape)}" for name, info in found.infos.items())
            raise ArrayFault("stack-uneven", f"the arrays of a stack differ in their first axis ({there})")
        return rows

    def fit(self, found: UnitScan) -> Fit:
        """How a sample of this unit meets the model; without one, only `rename` can be at fault."""
        seen = {name: info.row for name, info in found.infos.items()} if self.stacked else found.infos
        if self.signature is None:
            return fit(seen, _ANYTHING, batched=False, rename=self.rename)
        rename = self.rename
        if found.nameless and len(self.signature.inputs) == 1:
            rename = {NPY_KEY: self.signature.names[0], **rename}  # it has no name that could be wrong
        return fit(seen, self.signature, batched=False, rename=rename, targets=self.targets)

    def shape(self, arrays: Mapping[str, Array], told: Fit, row: int) -> dict[str, Array]:
        """One sample: the model's inputs first, then the answers.

        Args:
            arrays: a whole unit, or one row of a stack.
            told: the unit's fit.
            row: which sample of a unit that the fit splits.

        Raises:
            DataError: a value does not fit the input's dtype.
        """
        sample = told.apply(arrays, row)
        used = {step.key for step in told.steps}
        for name, array in arrays.items():
            if name in self.targets and name not in used and name not in sample:
                sample[name] = array[row] if told.rows > 1 and array.shape[:1] == (told.rows,) else array
        return sample
