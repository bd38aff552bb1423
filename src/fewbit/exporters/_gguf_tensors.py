# SPDX-License-Identifier: Apache-2.0
"""Every tensor of a model under the name it has in a GGUF file, in the layout llama.cpp reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fewbit.errors import UsageError, require
from fewbit.exporters._base import Destined
from fewbit.exporters._gguf_architecture import Architecture, row_order
from fewbit.modules.coded import Quantized
from fewbit.modules.inventory import take
from fewbit.modules.quantized import get_weight
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Held:
    """A tensor that the model holds and the file shall hold.

    Args:
        layer: the name of the module that owns it.
        module: that module.
        own: the tensor's name within it.
        target: its name in the file.
        order: the order its rows have in the file; none if it is the model's.
        shift: what is added to its values.
        table: whether it is an embedding or the head.
    """

    layer: str
    module: nn.Module
    own: str
    target: str
    order: Tensor | None
    shift: float
    table: bool

    @property
    def name(self) -> str:
        """Its name in the model."""
        return f"{self.layer}.{self.own}".lstrip(".")

    @property
    def grid(self) -> Grid | None:
        """What its codes mean, where it has codes."""
        coded = self.module.coded.get(self.own) if isinstance(self.module, Quantized) else None
        return None if coded is None else coded.grid

    @property
    def shape(self) -> tuple[int, ...]:
        """In the file, rows first."""
        coded = self.module.coded.get(self.own) if isinstance(self.module, Quantized) else None
        return tuple(self.parameter.shape) if coded is None else coded.shape

    @property
    def parameter(self) -> Tensor:
        """The float parameter, in the model's order of rows, `[out, in]`."""
        own: Tensor = getattr(self.module, self.own).detach()
        return own.t() if _is_transposed(self.module) and own.ndim == 2 else own

    def codes(self) -> QTensor:
        """Its codes in the model's order of rows, `[out, in]`."""
        found = get_weight(self.module, self.own)
        parts = {name: part.cpu() for name, part in found.tensors().items()}
        return QTensor.from_tensors(found.grid, found.shape, found.block, parts)

    def plain(self) -> Tensor:
        """Its values, float32, in the model's order of rows."""
        return self.parameter.float().cpu() if self.grid is None else self.codes().dequantize()

    def values(self) -> Tensor:
        """What the file should give back, float32, in the file's order of rows."""
        found = self.plain() + self.shift if self.shift else self.plain()
        return found if self.order is None else found[self.order]

    def destined(self) -> Destined:
        """The same as a plan says it."""
        quantizer = self.module.input_quantizer if isinstance(self.module, Quantized) else None
        taken, dynamic = (None, False) if quantizer is None else (quantizer.grid, quantizer.dynamic)
        return Destined(self.layer, self.own, self.shape, self.grid, taken, dynamic, self.table)


def held(model: Any, known: Architecture) -> tuple[list[Held], dict[str, str]]:
    """Every tensor once, in the model's order; and the names under which some of them are used again.

    Buffers that no checkpoint keeps are left out: llama.cpp computes them from the hyperparameters.

    Raises:
        UsageError: tensors that the architecture has no name for, all of them.
    """
    gguf = require("gguf", extra="gguf", purpose="a GGUF file")
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == known.name)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    tables = (gguf.MODEL_TENSOR.TOKEN_EMBD, gguf.MODEL_TENSOR.OUTPUT, gguf.MODEL_TENSOR.POS_EMBD)
    inventory = take(model)
    found, faults = [], []
    for name, kind in inventory.kinds.items():
        layer, own = _split(name, kind)
        module = model.get_submodule(layer)
        if own is None or (kind == "buffer" and own in module._non_persistent_buffers_set) or kind == "attribute":
            continue
        full = f"{layer}.{own}"
        place = names.get_type_and_name(full, try_suffixes=(".weight", ".bias"))
        if place is None or (own == "bias" and not known.all_biases and place[0].name not in _BIASED):
            faults.append(full)
            continue
        order = _order(place[0].name, module, own, model.config) if known.interleaved else None
        shift = known.norm_shift if "NORM" in place[0].name else 0.0
        found.append(Held(layer, module, own, place[1], order, shift, place[0] in tables))
    if faults:
        raise UsageError(
            f"llama.cpp's {known.name!r} has no place for {len(faults)} tensors of the model",
            where=", ".join(faults[:5]) + (" …" if len(faults) > 5 else ""),
            expected="the tensors of that architecture and no others",
        )
    again = {name.removesuffix("_packed"): first for name, first in inventory.aliases.items() if _is_weight(name)}
    return found, {name: first.removesuffix("_packed") for name, first in again.items()}


_BIASED = ("ATTN_Q", "ATTN_K", "ATTN_V")
_PARTS = ("_scale", "_zero_point", "_super_scale")


def _split(name: str, kind: str) -> tuple[str, str | None]:
    """The layer and the tensor's own name; none for the scales beside codes."""
    if kind == "code" and not name.endswith("_packed"):
        return name.rpartition(".")[0], None
    layer, _, own = name.rpartition(".")
    return layer, own.removesuffix("_packed") if kind == "code" else own


def _is_weight(name: str) -> bool:
    return not name.endswith(_PARTS)


def _is_transposed(module: nn.Module) -> bool:
    """Whether a module keeps its weight as `[in, out]`: GPT-2's linear layer does."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)


def _order(kind: str, module: nn.Module, own: str, config: Any) -> Tensor | None:
    if kind not in ("ATTN_Q", "ATTN_K"):
        return None
    heads = config.num_attention_heads if kind == "ATTN_Q" else config.num_key_value_heads
    rows = module.out_features
    assert isinstance(rows, int) and own in ("weight", "bias")
    return row_order(rows, heads)
