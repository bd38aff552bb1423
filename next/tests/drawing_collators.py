# SPDX-License-Identifier: Apache-2.0
"""Collators of a user that draw random numbers, or fail; importable by worker processes."""

import random

import numpy as np
import torch

from fewbit.errors import DataError


def draw(samples):
    """A batch with three random numbers in it."""
    numbers = [random.random(), float(np.random.random()), float(torch.rand(()))]
    return {"x": torch.tensor([sample["x"] for sample in samples]), "drawn": torch.tensor(numbers)}


def refuse(samples):
    """An error of ours, with all its parts."""
    raise DataError("never", code="never", where="here", expected="less", hint="leave")
