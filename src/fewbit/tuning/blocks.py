# SPDX-License-Identifier: Apache-2.0
"""The blocks a model is stacked of, found by looking, and what flows out of each while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor, nn


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The longest stack of modules of one class, the one with most layers in it if there are several; or nothing.

    How many layers lie in it counts, and not how large they are: a quantized model has the stacks of its float one.

    >>> len(find_blocks(nn.Sequential(nn.Embedding(4, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))))
    2
    """
    found: list[list[nn.Module]] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            children = list(module)
            kinds = {getattr(type(child), "float_class", type(child)) for child in children}
            if len(children) > 1 and len(kinds) == 1:
                found.append(children)
    return max(found, key=_layers, default=[])


def pair_blocks(student: Sequence[nn.Module], teacher: Sequence[nn.Module]) -> list[tuple[nn.Module, nn.Module]]:
    """Each block of a student with the one as far along in its teacher.

    >>> layers = [nn.Linear(1, 1) for _ in range(6)]
    >>> [layers.index(other) for _, other in pair_blocks(layers[:3], layers)]
    [1, 3, 5]
    """
    if not student or not teacher:
        return []
    return [(block, teacher[-(-(i + 1) * len(teacher) // len(student)) - 1]) for i, block in enumerate(student)]


class Outputs:
    """While it is open, what blocks give is kept: the first tensor of each, in order of the blocks.

    Args:
        blocks: whose outputs are wanted.
    """

    def __init__(self, blocks: Sequence[nn.Module]):
        self._blocks = blocks
        self._seen: dict[int, Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        self._hooks = [block.register_forward_hook(self._take) for block in self._blocks]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _take(self, module: nn.Module, args: Any, out: Any) -> None:
        self._seen[id(module)] = out if isinstance(out, Tensor) else out[0]

    def states(self) -> list[Tensor | None]:
        """What each block gave; none for one that did not run."""
        return [self._seen.get(id(block)) for block in self._blocks]


def _layers(blocks: list[nn.Module]) -> int:
    return sum(1 for block in blocks for part in block.modules() if not list(part.children()))
