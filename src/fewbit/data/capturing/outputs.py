# SPDX-License-Identifier: Apache-2.0
"""What a module returned, taken apart like its inputs: one tensor is `output`, a tuple is `output_0`, `output_1` …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.arrays.tensor_to_array import to_array
from fewbit.data.capturing.batch_axis import Column
from fewbit.data.capturing.leaves import gather
from fewbit.data.capturing.notes import Notes
from fewbit.data.tree import flatten


def output_columns(result: Any, count: int, bfloat16: str, notes: Notes) -> dict[str, Column]:
    """The arrays of a result by name, their batch axis is 0 where that has as many entries as the call samples.

    >>> import numpy as np
    >>> sorted(output_columns((np.zeros((2, 3)), {"loss": np.zeros(())}), 2, "float32", Notes()))
    ['output_0', 'output_1.loss']
    """
    if isinstance(result, Mapping):
        named = dict(result)
    else:
        named = {f"output_{path}" if path else "output": leaf for path, leaf in flatten(result)}
    found = gather(named)
    notes.constants({f"output {name}": value for name, value in found.constants.items()})
    columns = {}
    for leaf in found.data:
        batched = len(leaf.shape) > 0 and leaf.shape[0] == count
        if not batched:
            notes.add(
                "output-shared", f"shape {list(leaf.shape)} in a call of {count} samples: copied whole", leaf.name
            )
        columns[leaf.name] = Column(0 if batched else None, to_array(leaf.value, bfloat16=bfloat16, name=leaf.name))
    return columns
