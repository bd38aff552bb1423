# SPDX-License-Identifier: Apache-2.0
"""A user's own collator that draws random numbers, in a module that another process can import."""

import random

import numpy as np
import torch

from fewbit.errors import DataError


def draw(samples):
    """The samples' numbers, and what each of the three global generators gives."""
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    return {"x": torch.tensor([sample["x"] for sample in samples]), "drawn": torch.tensor(drawn)}


def refuse(samples):
    """Never a batch."""
    raise DataError("never", where="here", expected="less")
