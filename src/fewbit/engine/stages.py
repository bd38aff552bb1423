# SPDX-License-Identifier: Apache-2.0
"""Algorithms of several stages under one name: `"awq+gptq"` prepares by the first and settles by the second."""

from __future__ import annotations

from dataclasses import replace

from fewbit import registry
from fewbit.algorithms._members import members
from fewbit.engine.options import Options
from fewbit.errors import UsageError

_ROUND = "scale_search"


def split_stages(name: str | None, options: Options, *, data: bool, statistics: bool) -> tuple[str | None, Options]:
    """The algorithm that settles weights, and options that name those that prepare the model before.

    Args:
        name: what was asked for; an algorithm that prepares stands alone, for weights with searched scales, or before a
            `+` and what settles them.
        options: of the run.
        data: whether there are samples.
        statistics: whether second moments are kept or taken from a folder.

    Raises:
        UsageError: stages out of order or twice; something to prepare by, and no data to see channels in; or moments,
            which would be of a model that nobody else has.

    >>> split_stages("awq+gptq", Options(), data=True, statistics=False)[0]
    'gptq'
    >>> algorithm, options = split_stages("awq", Options(), data=True, statistics=False)
    >>> algorithm, options.prepare
    ('scale_search', ('awq',))
    """
    able = [*members("rotate"), *members("prepare")]
    rest, found = name, list(options.prepare or ())
    while rest is not None and rest.partition("+")[0] in able:
        first, _, rest = rest.partition("+")
        found.append(first)
        rest = rest or _ROUND
    disordered = rest is not None and "+" in rest and not registry.is_reference(rest)
    if disordered or len(set(found)) < len(found):
        raise UsageError(
            f"algorithm={name!r}",
            where="algorithm",
            expected=f"what prepares ({', '.join(able)}), each once, then what settles: awq+gptq, rotation+awq+gptq",
        )
    if not found:
        return rest, options
    said = f"algorithm={name!r}" if rest != name else f"prepare={found!r}"
    if not data:
        raise UsageError(
            f"{said} without data",
            where="algorithm",
            expected="samples that show how much each channel carries",
            try_=f"dataset=… or --data; or algorithm={_ROUND!r}, which needs none",
        )
    if statistics:
        raise UsageError(
            f"{said} with statistics",
            where="statistics",
            expected="no such folder: channels are scaled first, and moments of that model fit no other",
        )
    return rest, replace(options, prepare=tuple(found))
