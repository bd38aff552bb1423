# SPDX-License-Identifier: Apache-2.0
"""What `torch.export` must not see."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing


def constant(make: Callable[[], Tensor]) -> Tensor:
    """What `make` returns, computed now and not recorded: it reads tensors that no program can hold."""
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        return make()
