# SPDX-License-Identifier: Apache-2.0
"""What the stage `prune` can be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from fewbit.algorithms._members import algorithm
from fewbit.errors import UsageError
from fewbit.numerics.sparsity import Pattern
from fewbit.schemes.faults import Fault, refuse
from fewbit.schemes.modes import mode_spec

Scope = Literal["layer", "row", "global"]
Budget = Literal["uniform", "sensitivity"]


@dataclass(frozen=True)
class Settings:
    """Zeros in the weights of a model, in one go.

    Args:
        sparsity: the share of zeros, from 0 to 1; not needed for N:M.
        structure: `unstructured`; `2:4`, which keeps 2 of 4 along the input; blocks that are zero together, `1x4`.
        algorithm: `magnitude`, `wanda`, `sparse_gpt`, `alps`, `stepwise`, or your own `"file.py:function"`; by default
            the best that the data allows.
        parameters: of the algorithm, by name.
        scope: what the share is of: each `layer`, each `row` of a weight, or all layers under one threshold (`global`).
        budget: `uniform`, or `sensitivity`: layers that the answers depend on less have more of the zeros.
        targets: names of layers, globs, `re:` expressions or classes; by default all linear layers and convolutions
            but the first convolution and the last layer.
        ignore: the same, of what stays as it is.
        quantize: a weight mode such as `int4_sym` that the weights which are left have, settled in the same sweep.
        group_size: of that mode; its own by default.
        correct: make up for the shift of each layer's mean by its bias, if the answers come nearer.

    Raises:
        UsageError: everything that cannot be, at once.

    >>> Settings(0.5).pattern.text, Settings(structure="2:4").pattern.text
    ('50%', '2:4')
    """

    sparsity: float | None = None
    structure: str = "unstructured"
    algorithm: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    scope: Scope = "layer"
    budget: Budget = "uniform"
    targets: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    quantize: str | None = None
    group_size: int | None = None
    correct: bool = True

    def __post_init__(self) -> None:
        faults = []
        for name in ("targets", "ignore"):
            given = getattr(self, name)
            names = [given] if isinstance(given, str) else given
            if isinstance(names, list | tuple) and all(isinstance(each, str) for each in names):
                object.__setattr__(self, name, tuple(names))
            else:
                faults.append(Fault(name, repr(given), "a list of names"))
        refuse([*faults, *self._faults()], "the settings of prune")

    @property
    def pattern(self) -> Pattern:
        """Which elements of a weight may be zero."""
        pattern = Pattern.read(self.structure, self.sparsity, by_row=self.scope == "row")
        return replace(pattern, together=self.scope == "global")

    def _faults(self) -> Iterator[Fault]:
        share = self.sparsity
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)):
            yield Fault("sparsity", repr(share), "a number from 0 to 1")
        else:
            yield from _of(lambda: self.pattern)
        for name, known in (("scope", get_args(Scope)), ("budget", get_args(Budget))):
            if getattr(self, name) not in known:
                yield Fault(name, repr(getattr(self, name)), " or ".join(known))
        if self.algorithm is not None:
            yield from _of(
                lambda: algorithm(str(self.algorithm), "prune").refuse_unknown(self.parameters, "parameters"),
                "algorithm",
            )
        elif self.parameters:
            yield Fault("parameters", "parameters without an algorithm", "the name of the one they are for")
        if self.quantize is not None:
            yield from _of(lambda: mode_spec(str(self.quantize), group_size=self.group_size), "quantize")
        elif self.group_size is not None:
            yield Fault("group_size", f"{self.group_size} without `quantize`", "a weight mode, such as int4_sym")
        yield from self._contradictions()

    def _contradictions(self) -> Iterator[Fault]:
        if self.budget == "sensitivity" and ":" in str(self.structure):
            yield Fault("budget", f"sensitivity with {self.structure}", "uniform: N:M has the same share everywhere")
        if self.scope != "global":
            return
        if self.structure != "unstructured":
            yield Fault("scope", f"global with {self.structure}", "unstructured, or the scope layer")
        if self.algorithm not in (None, "magnitude"):
            yield Fault("scope", f"global with {self.algorithm}", "magnitude: scores of others do not compare", "layer")
        if self.budget != "uniform":
            yield Fault("budget", "sensitivity with the scope global", "one of the two: both share zeros out")


def _of(look: Any, about: str | None = None) -> Iterator[Fault]:
    """What somebody says is wrong, as a fault: of the setting that it names, or of the one that was looked at."""
    try:
        look()
    except UsageError as error:
        named = error.where if error.where in {each.name for each in fields(Settings)} else about
        yield Fault(named or error.where or "prune", error.what, error.expected or "", error.try_)
