# SPDX-License-Identifier: Apache-2.0
"""Linear layers of which two of every four weights are zero, on the GPU kernels that skip them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.copying import copied
from fewbit.errors import UsageError
from fewbit.modules.quantized import is_quantized

_SINCE = (8, 0)
"""Compute capability of NVIDIA's Ampere, the first with 2:4 in its tensor cores."""
_DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class SemiStructured:
    """What `to_semi_structured` made.

    Args:
        model: with the new weights.
        taken: the layers that skip zeros now.
        left: the other linear layers, each with the reason.
    """

    model: nn.Module
    taken: tuple[str, ...]
    left: dict[str, str]


def is_two_of_four(weight: Tensor) -> bool:
    """Whether of every four neighbours along the input at least two are zero.

    >>> is_two_of_four(torch.tensor([[1.0, 0, 0, 2, 0, 0, 0, 3]])), is_two_of_four(torch.ones(1, 4))
    (True, False)
    """
    if weight.ndim != 2 or weight.shape[1] % 4 or not weight.numel():
        return False
    return int((weight.reshape(-1, 4) != 0).sum(1).max()) <= 2


def unfit(layer: nn.Module) -> str | None:
    """Why a linear layer cannot skip its zeros, whatever the machine; none if it can.

    >>> unfit(nn.Linear(64, 64))
    'its weight is torch.float32, and the kernels are for torch.float16 and torch.bfloat16'
    """
    if is_quantized(layer):
        return "its weight is codes, which other kernels read"
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if weight.dtype not in _DTYPES:
        return f"its weight is {weight.dtype}, and the kernels are for {' and '.join(map(str, _DTYPES))}"
    rows, columns = _multiples(weight.dtype)
    if weight.shape[0] % rows or weight.shape[1] % columns:
        return f"it is {list(weight.shape)}, and the kernels take multiples of [{rows}, {columns}]"
    if not is_two_of_four(weight):
        return "there are fours of its weights with more than two that are not zero"
    return None


def to_semi_structured(model: nn.Module) -> SemiStructured:
    """Give 2:4 linear layers weights that the GPU multiplies without their zeros. The given model is not changed.

    The answers are those of the dense kernels but for the order of sums. Such weights do not learn. PyTorch spends half
    a millisecond on each call of such a layer before its kernel starts, so only large ones are faster, or those that
    are replayed as a CUDA graph; `bench/RESULTS.md` has the sizes.

    Args:
        model: on an NVIDIA GPU, in half precision.

    Raises:
        UsageError: no such GPU, a model that is elsewhere, or no layer that fits, with every reason.
    """
    _refuse_machine(model)
    made = copied(model)
    taken, left = [], {}
    for name, layer in made.named_modules():
        if isinstance(layer, nn.Linear):
            reason = unfit(layer)
            if reason is None:
                _swap(layer)
                taken.append(name)
            else:
                left[name] = reason
    if not taken:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(left.items())[:5])
        raise UsageError(
            f"no layer can skip zeros: {reasons or 'the model has no linear layers'}",
            where=type(model).__name__,
            expected="linear layers in half precision, pruned 2:4",
            try_="fewbit.sparsify(model, data, recipe=…) with structure: '2:4', then .half()",
        )
    return SemiStructured(made, tuple(taken), left)


def _refuse_machine(model: nn.Module) -> None:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise UsageError(
            "there is no NVIDIA GPU here",
            where="to_semi_structured",
            expected="compute capability 8.0 (Ampere) or later; CPUs and other GPUs compute with zeros as with numbers",
        )
    found = torch.cuda.get_device_capability()
    if found < _SINCE:
        raise UsageError(
            f"the GPU has compute capability {found[0]}.{found[1]}", where="to_semi_structured", expected="8.0 or later"
        )
    places = {parameter.device.type for parameter in model.parameters()}
    if places != {"cuda"}:
        raise UsageError(
            f"the model is on {', '.join(sorted(places)) or 'no device'}",
            where="model",
            expected="cuda",
            try_=".cuda()",
        )


def _swap(layer: nn.Linear) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says in every process that this is a prototype
        sparse: Any = torch.sparse.to_sparse_semi_structured(layer.weight.detach())
    layer.weight = nn.Parameter(sparse, requires_grad=False)


def _multiples(dtype: torch.dtype) -> tuple[int, int]:
    """What the sides of a weight have to be multiples of, for the library that PyTorch will use."""
    library: Any = torch.sparse.SparseSemiStructuredTensorCUSPARSELT
    if torch.cuda.is_available() and not torch.backends.cusparselt.is_available():
        library = torch.sparse.SparseSemiStructuredTensorCUTLASS
    sides = library._DTYPE_SHAPE_CONSTRAINTS[dtype]
    return sides.sparse_min_rows, sides.sparse_min_cols
