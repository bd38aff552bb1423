# SPDX-License-Identifier: Apache-2.0
"""Which algorithm settles a weight, and with which parameters."""

from __future__ import annotations

from typing import Any

from fewbit.algorithms._members import Algorithm, algorithm, members
from fewbit.errors import UsageError
from fewbit.schemes.config import Config
from fewbit.schemes.spec import QuantizationSpec


def weight_algorithm(config: Config, spec: QuantizationSpec) -> tuple[str, dict[str, Any]]:
    """The name and the parameters that a configuration gives.

    What the spec names comes first, then `algo_config`, then the default. An entry of `algo_config` also holds the
    parameters for the specs that name its algorithm.
    """
    entries = {str(entry["name"]): dict(entry) for entry in config.algo_config or ()}
    free = spec.algorithm is None and spec.observer_cls is None
    name = next(iter(entries)) if free and entries else spec.weight_algorithm
    return name, {key: value for key, value in entries.get(name, {}).items() if key != "name"}


def checked_algorithm(
    name: str, parameters: dict[str, Any], spec: QuantizationSpec, where: str
) -> tuple[Algorithm, dict[str, Any]]:
    """The algorithm itself and all it will be called with; what it does not take is told before any work.

    Raises:
        UsageError: no such algorithm or parameter, one that gives no codes, or an observer that it would not ask.
    """
    found = algorithm(name)
    if found.stage not in ("round", "tune"):
        raise UsageError(
            f"the algorithm {name!r} runs at stage {found.stage!r} and gives no codes",
            where=where,
            expected=f"one that does: {', '.join(members('round'))}",
            try_=f"advanced_parameters={{'prepare': ['{name}']}} beside it"
            if found.stage in ("prepare", "rotate")
            else None,
        )
    found.refuse_unknown(parameters, where="algo_config")
    if spec.observer_cls is None:
        return found, parameters
    if "observer" not in found.parameters:
        raise UsageError(
            f"observer_cls={spec.observer!r} with the algorithm {name!r}, which asks no observer",
            where=where,
            expected="one of the two",
            try_="algorithm='rtn': its scales follow from the observer's range",
        )
    return found, {"observer": spec.observer_cls, "observer_parameters": spec.observer_parameters, **parameters}
