# SPDX-License-Identifier: Apache-2.0
"""Which rows each expert of a stack is multiplied with, found by watching its module.

The module is run on what it was called with, its stacks replaced by markers: every element of an expert is that
expert's number. Whatever indexing, sorting or copying lies between, each matrix product then shows whose matrix came
in, and the other factor is what that expert was given. Products with a marker are not computed, so that a look at the
first stack costs nothing but the sorting of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fewbit.backends.eager.trial import Call, forward, swapped

_STEPS = 128  # numbers between two powers of two that bfloat16 tells apart
_FIRST = -14  # the smallest power of two that float16 tells all of them of


@dataclass(frozen=True)
class Met:
    """One product with the matrix of an expert.

    Args:
        stack: the name of the parameter.
        expert: its number.
        rows: what it was multiplied with, `[rows, in]`.
        factor: what these are rows of.
    """

    stack: str
    expert: int
    rows: Tensor
    factor: Tensor


def meetings(module: nn.Module, stacks: Mapping[str, int], call: Call) -> list[Met]:
    """Run a module and tell what the experts of some stacks are multiplied with, in the order of the products.

    Args:
        module: of any class.
        stacks: names of parameters, each with the axis that numbers its experts. What is computed from products with
            these is not what it would be, so they are the ones from which on nothing more is to be learned.
        call: what the module is called with.
    """
    numbers: list[tuple[str, int]] = []
    markers: dict[str, Tensor] = {}
    for name, axis in stacks.items():
        parameter = module._parameters[name]
        assert parameter is not None
        count = parameter.shape[axis]
        places = torch.arange(len(numbers), len(numbers) + count, device=parameter.device)
        shape = [count if each == axis else 1 for each in range(parameter.ndim)]
        markers[name] = _values(places).to(parameter.dtype).reshape(shape).expand(parameter.shape)
        numbers += [(name, expert) for expert in range(count)]
    watch = _Products(numbers)
    with swapped(module, markers), torch.no_grad(), watch:
        forward(module, call)
    return watch.found


def stages(met: Sequence[Met]) -> list[tuple[str, ...]]:
    """Stacks that read the same, together, in the order they run."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    known: set[str] = set()
    for each in met:
        if each.stack not in known:
            known.add(each.stack)
            key = (each.factor.data_ptr(), each.factor.shape)  # all factors are alive, so no two share an address
            groups.setdefault(key, []).append(each.stack)
    return [tuple(names) for names in groups.values()]


def _values(places: Tensor) -> Tensor:
    """Numbers that half precision tells apart, none of which an activation is likely to be made of."""
    return -(1 + places % _STEPS / _STEPS) * 2.0 ** (places // _STEPS + _FIRST)


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches matrix products for a factor made of markers."""

    def __init__(self, numbers: Sequence[tuple[str, int]]):
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = numbers
        self.found: list[Met] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the default imports the compiler: seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split("::")[-1].split(".")[0]
        factors = [arg for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()][-2:]
        if len(factors) < 2 or not ("mm" in name or name in ("mv", "addmv")):
            return func(*args, **kwargs)
        left, right = factors  # a summand, if any, comes before them
        ends = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_floating_point()]
        if right.ndim == 1:
            found = self._look(left.mT, right[None], ends)
            shape = [*left.shape[:-1]]
        else:
            found = self._look(right, left, ends) or self._look(left.mT, right.mT, ends)
            shape = [*left.shape[:-1], right.shape[-1]]
        if not found:
            return func(*args, **kwargs)
        self.found += found
        given = args[0] if name.endswith("_") else kwargs.get("out")
        return left.new_zeros(shape) if given is None else given.zero_()

    def _look(self, weight: Tensor, x: Tensor, ends: Sequence[Tensor]) -> list[Met]:
        """The experts in a factor `[…, in, out]`, each with its rows of the other; nothing if it is no marker."""
        places = self._places(weight)
        if places is None:
            return []
        if weight.ndim == x.ndim + 1 and ends:  # rows are sorted, and each expert's end is given
            borders = [0, *ends[0].tolist()]
            pairs = [(int(places[i, 0]), x[a:b]) for i, (a, b) in enumerate(pairwise(borders)) if a < b]
        else:
            pairs = list(_shared(places, x))
        return [Met(*self._numbers[place], rows, x) for place, rows in pairs]

    def _places(self, weight: Tensor) -> Tensor | None:
        """The numbers of experts in a factor, `[matrices, out]`."""
        if weight.ndim < 2 or not weight.numel():
            return None
        known = _values(torch.arange(len(self._numbers), device=weight.device)).to(weight.dtype)
        if not torch.isin(weight[(0,) * weight.ndim], known):
            return None
        first, last = weight[..., 0, :], weight[..., -1, :]
        if not bool((first == last).all()) or not bool(torch.isin(first, known).all()):
            return None
        order = known.double().argsort()
        places = order[torch.searchsorted(known.double()[order], first.double().contiguous())]
        return places.reshape(-1, weight.shape[-1])


def _shared(places: Tensor, x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each number in any column of a matrix, with the rows that this matrix was multiplied with."""
    x = x if x.ndim > 2 else x[None]
    x = x.reshape(-1, *x.shape[-2:])
    for place in sorted({*places.flatten().tolist()}):
        rows = x[(places == place).any(1)] if len(places) > 1 else x
        yield place, rows.reshape(-1, x.shape[-1])
