# SPDX-License-Identifier: Apache-2.0
"""Under which names, in which order and dtype the inputs are written: the model's own, or those of its export."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.capturing.batch_axis import Note
from fewbit.data.signature import InputSpec, Signature, read_signature
from fewbit.errors import DataError, UsageError, nearest


class Naming:
    """Maps captured names (`forward`'s, dotted) to the names written.

    Args:
        names: `None` keeps them; a list gives the new ones in order; a mapping renames those it lists; anything else
            is a model (`"model.onnx"`), whose inputs set names, order and dtype.
        parameters: what `forward` declares; such a name is never filled by another argument.
        note: told a code, a reason and a name for every match that is not exact.
    """

    def __init__(self, names: Any, parameters: Sequence[str], note: Note):
        self._renames = dict(names) if isinstance(names, Mapping) else {}
        self.signature = None if names is None or isinstance(names, Mapping) else _as_signature(names)
        self._parameters = frozenset(parameters)
        self._note = note
        self._known: dict[tuple[str, ...], dict[str, str]] = {}
        self._by_position: set[str] = set()

    @property
    def source(self) -> str:
        """Where the names come from, for the manifest."""
        if self.signature is not None:
            return self.signature.source
        return "renamed" if self._renames else "forward"

    def assign(self, found: Sequence[str]) -> dict[str, str]:
        """The written name of each captured one, in the order to write; captured ones without one are left out.

        Raises:
            DataError: a required input is missing, or two would be written under one name.
        """
        key = tuple(found)
        if key not in self._known:
            self._known[key] = (
                self._rename(found) if self.signature is None else self._match(list(found), self.signature)
            )
        return self._known[key]

    def _rename(self, found: Sequence[str]) -> dict[str, str]:
        for name in self._renames:
            if name not in found:
                raise UsageError(f"names renames {name!r}, which is no input here", expected=nearest(name, found))
        names = {name: self._renames.get(name, name) for name in found}
        if len(set(names.values())) < len(names):
            raise UsageError(
                f"names gives two inputs the same name: {', '.join(names.values())}",
                expected="a name of its own for each",
            )
        return names

    def _match(self, found: list[str], signature: Signature) -> dict[str, str]:
        wanted = list(signature.names)
        pairs = {name: name for name in wanted if name in found}  # wanted -> found
        for spelled in (_last_part, _normal):
            for name in wanted:
                alike = [other for other in found if other not in pairs.values() and spelled(other) == spelled(name)]
                if name not in pairs and len(alike) == 1:
                    pairs[name] = alike[0]
                    self._note("name-matched", f"input {name!r} is filled from {alike[0]!r}", name)
        needed = [spec.name for spec in signature.inputs if spec.required and spec.name not in pairs]
        open_names = [name for name in needed if name not in self._parameters]
        left = [name for name in found if name not in pairs.values()]
        for name, other in zip(open_names, left):
            pairs[name] = other
            self._by_position.add(name)
            self._note("name-by-position", f"input {name!r} is filled from {other!r} by position", name)
        self._complain(found, pairs, signature)
        return {pairs[name]: name for name in wanted if name in pairs}

    def _complain(self, found: list[str], pairs: dict[str, str], signature: Signature) -> None:
        missing = [spec.name for spec in signature.inputs if spec.required and spec.name not in pairs]
        if missing:
            raise DataError(
                f"the call gives nothing for {', '.join(map(repr, missing))}",
                code="input-missing",
                where=signature.source,
                expected=", ".join(map(str, signature.inputs)),
                try_=f"pass it; the call has: {', '.join(found)}",
            )
        for name in found:
            if name not in pairs.values():
                self._note("input-left-out", f"argument {name!r} is no input of {signature.source}", name)

    def spec(self, name: str) -> InputSpec | None:
        """What the model says about an input of this (written) name."""
        specs = () if self.signature is None else self.signature.inputs
        return next((spec for spec in specs if spec.name == name), None)

    def cast(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An input as the call gave it, in the dtype the model takes, where that is safe.

        Raises:
            DataError: values would be lost (fractions, numbers out of range), or a match by position does not fit.
        """
        spec = self.spec(name)
        if spec is not None and spec.shape is not None and len(spec.shape) != array.ndim:
            if name in self._by_position:
                raise self._unsafe(name, array, spec, "matched by position, it does not fit")
            self._note("rank-differs", f"the model takes {spec}, the call gave {list(array.shape)}", name)
        if spec is None or spec.dtype is None or spec.dtype == array.dtype.name:
            return array
        try:
            dtype = np.dtype(spec.dtype)
        except TypeError:  # bfloat16 and float8 keep the form the policy gave them
            return array
        if (array.dtype.kind in "fc" and dtype.kind in "iub") or array.dtype.kind in "US" or dtype.kind in "OUS":
            raise self._unsafe(name, array, spec, "it cannot be converted")
        with np.errstate(over="ignore", invalid="ignore"):
            made = array.astype(dtype)
        changed = made.astype(array.dtype) != array if dtype.kind in "iub" else np.isfinite(array) & ~np.isfinite(made)
        if np.any(changed):
            raise self._unsafe(name, array, spec, "values would be lost")
        if array.dtype == np.uint8 and dtype.kind == "f":
            self._note(
                "image-not-scaled", "bytes go into a float input as 0…255; was a division by 255 forgotten?", name
            )
        self._note("dtype-cast", f"{array.dtype.name} is written as {dtype.name}, which the model takes", name)
        return made

    def _unsafe(self, name: str, array: NDArray[Any], spec: InputSpec, why: str) -> DataError:
        return DataError(
            f"input {name!r} is {array.dtype.name}{list(array.shape)}: {why}",
            code="input-dtype",
            where=self.source,
            expected=str(spec),
            try_="pass names={...} that map arguments to inputs, or convert before the call",
        )


def _as_signature(names: Any) -> Signature:
    if not isinstance(names, list | tuple):
        return read_signature(names)
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if wrong or len(set(names)) < len(names) or not names:
        raise UsageError(f"names is {names!r}", expected="a list of different texts, in the order of the inputs")
    return Signature("names", tuple(InputSpec(name) for name in names), source="the list of names")


def _last_part(name: str) -> str:
    last = name.rpartition(".")[2]
    return name if last.isdecimal() else last


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower().removesuffix(":0"))
