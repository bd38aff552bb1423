# SPDX-License-Identifier: Apache-2.0
"""`optim_level`: one number from 0 (unchanged) to 1 (as sparse as it gets), as the recipe it means.

| level | one-shot | training-aware | sparse-transfer |
|---|---|---|---|
| 0 | unchanged | unchanged | trained, the zeros that are there stay |
| above 0 | int8 | int8, learned | the same, then int8 |
| 0.3 | int8, 40 % zeros | int8, 60 % zeros | the same |
| 0.5 | int8, 51.43 % zeros | int8, 70 % zeros | the same |
| 0.8 | int8, 68.57 % zeros | int8, 85 % zeros | the same |
| 1 | int8, 80 % zeros | int8, 95 % zeros | the same |

From 0.3 on the share of zeros grows in a straight line. Whole numbers from 2 to 100 are percents of the way.
"""

from __future__ import annotations

import math
from typing import Any

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.schemes.faults import refuse
from fewbit.sparsity.modes import fault_of_mode
from fewbit.sparsity.recipe import Recipe

SPARSE_FROM = 0.3
"""Below it only codes are made; from here on zeros too."""
_ZEROS = {"one-shot": (0.40, 0.80), "training-aware": (0.60, 0.95)}
_INT8 = "w8a8"


def read_level(level: Any) -> float:
    """A level as a number from 0 to 1.

    Raises:
        UsageError: neither from 0 to 1 nor a whole number up to 100.

    >>> read_level(0.5), read_level(50), read_level(1)
    (0.5, 0.5, 1.0)
    """
    number = isinstance(level, int | float) and not isinstance(level, bool) and math.isfinite(level)
    if number and 0 <= level <= 1:
        return float(level)
    if number and isinstance(level, int) and 2 <= level <= 100:
        return level / 100
    raise UsageError(
        f"optim_level={level!r}",
        where="optim_level",
        expected="a number from 0 to 1, or a whole number from 2 to 100, which is percents",
    )


def zeros_at(mode: str, level: float) -> float | None:
    """The share of zeros that a level asks of a mode; none if it asks for none.

    >>> zeros_at("one-shot", 0.3), zeros_at("training-aware", 1.0), zeros_at("one-shot", 0.2)
    (0.4, 0.95, None)
    """
    if mode not in _ZEROS or level < SPARSE_FROM:
        return None
    low, high = _ZEROS[mode]
    # Of a ten-thousandth nobody sees the difference, and everybody the digits.
    return round(low + (level - SPARSE_FROM) / (1 - SPARSE_FROM) * (high - low), 4)


def recipe_for(mode: str, optim_level: float = 0.5, *, use_case: str | None = None, teacher: bool = False) -> Recipe:
    """The recipe that a level means.

    Args:
        mode: `one-shot`, `training-aware` or `sparse-transfer`.
        optim_level: 0 to 1, or 2 to 100 percent; see the table above.
        use_case: what the model is for.
        teacher: whether somebody named a model to learn from, which sparse transfer has not of its own.

    Raises:
        UsageError: another mode or level.

    >>> print(recipe_for("one-shot", 0.5).to_dict()["stages"][0]["prune"]["sparsity"])
    0.5143
    """
    refuse(fault_of_mode(mode), "the call")
    level = read_level(optim_level)
    zeros = zeros_at(mode, level)
    int8 = _INT8 if level > 0 else None
    stages: list[tuple[str, dict[str, Any]]] = []
    if mode == "one-shot":
        stages += [("prune", {"sparsity": zeros})] if zeros is not None else []
        stages += [("quantize", {"preset": int8})] if int8 is not None else []
    elif mode == "sparse-transfer":
        stages.append(("train", {"distill": teacher, "quantize": int8}))
    elif int8 is not None:
        stages.append(("train", {"final": zeros, "quantize": int8}))
    made = [(name, registry.get("stages", name).Settings(**settings)) for name, settings in stages]
    return Recipe(tuple(made), mode, use_case)
