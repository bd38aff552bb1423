# SPDX-License-Identifier: Apache-2.0
"""What a kernel is: another way to compute what a quantized layer computes, faster, on codes.

A member is a file with

- `SPEED`: an integer; of the kernels that accept a layer the one with the highest is taken;
- `refuses(layer, terms) -> str | None`: `None` if it can run the layer under these terms; otherwise why not,
  in words, or an empty text where the layer is simply not of its kind;
- `Kernel`: a subclass of the one below, made once from a layer.

Kernels stand in for layers that have one weight named `weight` and whose forward takes one tensor; or they run that
forward themselves and then get whatever it takes (`wraps`). A kernel that
wants the codes in another layout takes parts of the weight out of the layer (`takes`) and gives them back bit by bit
(`restore`): no code is ever kept twice. A layer that every kernel refuses keeps its own forward on dequantized
weights.

A frozen model can be compiled and exported. For `torch.compile` what the compiler cannot see through is a custom
operator (`_operators`); for `torch.export` a kernel uses nothing but PyTorch's own operators and plain tensors, so
that the program can be saved and run where fewbit is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from fewbit.modules.frozen import Terms
from fewbit.modules.quantized import Quantized
from fewbit.numerics.qtensor import QTensor


class Kernel(ABC):
    """One frozen layer's way to run.

    Attributes:
        name: the member's name, set by `freeze`.
        refused: faster kernels that came close, and why each refused; set by `freeze`.
        terms: what it was made for.
        note: what is worth telling of how it computes.
        takes: the parts of the weight (`packed`, `scale`, …) that live here and no longer in the layer.
        wraps: it runs the layer's own forward, with whatever arguments that takes, and stands only around it.
        stand_in: what the layer shows as its float weight while the kernel runs the layer's own forward; or none.
    """

    name: str = ""
    refused: Mapping[str, str] = MappingProxyType({})
    note: str = ""
    takes: tuple[str, ...] = ()
    wraps: bool = False
    stand_in: Tensor | None = None
    holds: ClassVar[tuple[str, ...]] = ()  # attributes that are tensors, or none

    def __init__(self, terms: Terms):
        self.terms = terms

    @abstractmethod
    def run(self, layer: Any, x: Tensor) -> Tensor:
        """What the layer's own forward computes, in the dtype of `x`; without the quantizer of its output."""

    def parts(self) -> dict[str, Tensor]:
        """The parts named in `takes`, as the layer kept them."""
        return {}

    def restore(self, layer: Quantized) -> QTensor:
        """The layer's weight, bit by bit."""
        coded = layer.coded["weight"]
        kept = {part: getattr(layer, f"weight_{part}") for part in ("packed", "scale", "zero_point", "super_scale")}
        parts = {name: part for name, part in {**kept, **self.parts()}.items() if part is not None}
        return QTensor.from_tensors(coded.grid, coded.shape, coded.block, parts)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor the kernel keeps alive."""
        for name in self.holds:
            tensor = getattr(self, name)
            if tensor is not None:
                yield tensor
