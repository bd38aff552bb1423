# SPDX-License-Identifier: Apache-2.0
"""Columns with zeros that stay, rounded some at a time: the kept ones to come are moved to their best values again.

The feedback of `_columns` is shared by all rows, so it counts on columns that are zero in some; which ones are is
another matter in every row. Within a run that is near enough. After it, what is left of each row makes up for what the
run lost, on its own support (`_support`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.algorithms._columns import PANEL, Columns
from fewbit.algorithms._moment import Moment
from fewbit.algorithms._support import refined
from fewbit.numerics.qparams import QParams

_WIDTH, _RUNS = 32, 16  # of a run at least, and how many there are at most
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
    return work.by_runs(aim[:, order], mask[:, order], moment.gram[order][:, order])


class _Work(Columns):
    def by_runs(self, aim: Tensor, mask: Tensor, gram: Tensor) -> Tensor:
        now, free = self._whole[:, self._order].contiguous(), mask.clone()
        width = max(_WIDTH, -(-now.shape[1] // _RUNS))
        for start in range(0, now.shape[1], width):
            end = min(start + width, now.shape[1])
            now[:, start:end] = self._run(start, now[:, start:end].T.contiguous()).T
            free[:, start:end] = False
            if end < now.shape[1]:
                now = refined(now, aim, free, gram, _STEPS)
        return self._codes(now.T.contiguous())

    def _run(self, start: int, aim: Tensor) -> Tensor:
        """Some columns, `[columns, out]`, rounded one after the other."""
        done, lost = torch.empty_like(aim), torch.empty_like(aim)
        feedback = self._feedback[start : start + len(aim), start : start + len(aim)]
        for first in range(0, len(aim), PANEL):
            here = slice(first, first + PANEL)
            near = torch.addmm(aim[here], feedback[:first, here].T, lost[:first])
            before = feedback[here, here].T.contiguous()
            done[here], lost[here] = self._panel(start + first, near, before, aim[here])
        return done
