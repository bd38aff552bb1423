# SPDX-License-Identifier: Apache-2.0
"""Modules that read a parameter many times in one forward: the float values are made once and dropped at its end.

Experts in one tensor read it once an expert (`self.gate_up_proj[expert]`), and each reading would otherwise dequantize
the whole stack.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fewbit.modules.coded import Quantized


class Holding(Quantized):
    """Keeps dequantized parameters for the duration of a forward."""

    _held: dict[str, Tensor] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._held = {}
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._held = None

    def float_parameter(self, name: str) -> Tensor:
        """The float values of a quantized parameter, in the module's own layout and dtype."""
        held = self._held  # looked up once: another thread's forward may end meanwhile
        if held is None:
            return super().float_parameter(name)
        if name not in held:
            held[name] = super().float_parameter(name)
        return held[name]

    def __getstate__(self) -> dict[str, Any]:
        """Without the float values: a copy made during a forward would keep them for good."""
        return {name: value for name, value in super().__getstate__().items() if name != "_held"}
