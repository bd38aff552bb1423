# SPDX-License-Identifier: Apache-2.0
"""Columns with zeros that stay, rounded some at a time: the kept ones to come are moved to their best values again.

The feedback of `_columns` is shared by all rows, so it counts on columns that are zero in some; which ones are is
another matter in every row. Within a panel that is near enough. After it, what is left of each row makes up for what
the panel lost, on its own support (`_support`).
"""

from __future__ import annotations

from torch import Tensor

from fewbit.algorithms._columns import Columns
from fewbit.algorithms._moment import Moment
from fewbit.algorithms._support import refined
from fewbit.numerics.qparams import QParams

_WIDTH, _PANELS = 32, 16  # of a panel at least, and how many there are at most
_STEPS = 3


def rounded_on_support(values: Tensor, aim: Tensor, mask: Tensor, scales: QParams, moment: Moment) -> Tensor:
    """The codes, `[out, in]`.

    Args:
        values: what is rounded, `[out, in]`; zero where the mask is not.
        aim: the weight whose answers are wanted, `[out, in]`.
        mask: where codes may be other than zero, `[out, in]`.
        scales: of the blocks of the values; they stay as they are.
        moment: of the input.
    """
    work = _Work(values, scales, moment.order, moment.feedback, 0.0, mask)
    order = moment.order
    return work.by_panels(aim[:, order], mask[:, order], moment.gram[order][:, order])


class _Work(Columns):
    def by_panels(self, aim: Tensor, mask: Tensor, gram: Tensor) -> Tensor:
        now, free = self._whole[:, self._order].contiguous(), mask.clone()
        width = max(_WIDTH, -(-now.shape[1] // _PANELS))
        for start in range(0, now.shape[1], width):
            here = slice(start, start + width)
            before, near = self._feedback[here, here].T.contiguous(), now[:, here].T.contiguous()
            now[:, here] = self._panel(start, near.clone(), before, near)[0].T
            free[:, here] = False
            if start + width < now.shape[1]:
                now = refined(now, aim, free, gram, _STEPS)
        return self._codes(now.T.contiguous())
