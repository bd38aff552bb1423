# SPDX-License-Identifier: Apache-2.0
"""A frozen layer outside a compiled graph; imported only while compiling, because it loads the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewbit.backends.torch.layers import differentiable

outside_the_graph: Callable[[Any, Tensor], Tensor] = torch.compiler.disable(differentiable)  # type: ignore[no-untyped-call]
