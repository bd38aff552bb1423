# SPDX-License-Identifier: Apache-2.0
"""Layers and quantizers as they are while a quantized model learns; `training_quantized` puts them in their places."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torch import Tensor, nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.coded import Coded
from fewbit.modules.frozen import Terms
from fewbit.modules.layout import to_ours, to_own
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import load_scale
from fewbit.numerics.zero_points import load_zero
from fewbit.tuning.straight_through import lsq_share, on_grid, stretched

STRETCH = "stretch"


class Learning:
    """Mixed in front of a quantized layer: its weights are parameters that are rounded when they are read.

    Attributes:
        coded: how each weight will be kept as codes.
        terms_before: how the layer was frozen, if it was.
        pruned: the elements of weights that are zero for good, where there are such.
    """

    coded: dict[str, Coded]
    terms_before: Terms | None
    pruned: dict[str, Tensor]
    _parameters: dict[str, nn.Parameter | None]
    _buffers: dict[str, Tensor | None]

    def float_parameter(self, name: str) -> Tensor:
        """The weight on its grid, in the module's own layout and dtype; a layer that holds weights makes it once."""
        held: dict[str, Tensor] | None = getattr(self, "_held", None)
        if held is not None and name in held:
            return held[name]
        coded, (qparams, scale) = self.coded[name], self.scales_of(name)
        share = lsq_share(prod(coded.block), coded.grid.dtype)
        moved = on_grid(self._ours(name), qparams, scale, share=share)
        found = to_own(moved, coded.axes, coded.groups).to(coded.dtype)
        if held is not None:
            held[name] = found
        return found

    def codes_of(self, name: str) -> QTensor:
        """The codes that the weight has now."""
        return QTensor.encode(self._ours(name).detach(), self.scales_of(name)[0])

    def scales_of(self, name: str) -> tuple[QParams, Tensor | None]:
        """The scales as they are now, and as a tensor that learns, if they do."""
        coded = self.coded[name]
        parts = {part: self._buffers.get(f"{name}_{part}") for part in ("scale", "zero_point", "super_scale")}
        assert parts["scale"] is not None
        scale, zero = load_scale(parts["scale"], coded.grid.scale_type), parts["zero_point"]
        stretch = self._parameters.get(f"{name}_{STRETCH}")
        learned = None if stretch is None else stretched(scale, stretch, coded.grid.scale_type)
        now = scale if learned is None else learned.detach()
        zero = None if zero is None else load_zero(zero)
        return QParams(coded.grid, coded.block, now, zero, parts["super_scale"]), learned

    def _ours(self, name: str) -> Tensor:
        coded, master = self.coded[name], self._parameters[name]
        assert master is not None
        return to_ours(master, coded.axes, coded.groups)


class LearningQuantizer(ActivationQuantizer):
    """The quantizer of an activation while a model learns: no gradient where it clips, and fixed scales may learn."""

    stretch: nn.Parameter | None

    def qparams(self, x: Tensor) -> QParams:
        """Scales and zero points for one activation."""
        found = super().qparams(x)
        learned = self.learned()
        return found if learned is None else replace(found, scale=learned.detach().reshape(found.scale.shape))

    def forward(self, x: Tensor) -> Tensor:
        if not x.numel():
            return x.clone()
        qparams, learned = self.qparams(x), self.learned()
        share = lsq_share(qparams.block[self.features], self.grid.dtype)
        return on_grid(x, qparams, None if learned is None else learned.reshape(qparams.scale.shape), share=share)

    def learned(self) -> Tensor | None:
        """The fixed scales as a tensor that learns, if they do."""
        if self.stretch is None or self.scale is None:
            return None
        return stretched(self.scale, self.stretch, self.grid.scale_type)
