# SPDX-License-Identifier: Apache-2.0
"""Several processes under torchrun: sums in a fixed binary tree, so that their number does not change a bit."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor


class TreeSum:
    """A sum over numbered leaves in a fixed binary tree: node k of level l is the sum of leaves k·2ˡ to (k+1)·2ˡ - 1.

    Leaves come in order, from any first one; a node is made when both of its halves are there. Whoever adds which
    leaves, the same pairs of numbers are added.

    >>> one, other, total = TreeSum(), TreeSum(), TreeSum()
    >>> for leaf in range(5):
    ...     (one if leaf < 3 else other).add_node(Node(0, leaf, torch.tensor([float(leaf)])))
    >>> [(node.level, node.index) for node in one.nodes + other.nodes]
    [(1, 0), (0, 2), (0, 3), (0, 4)]
    >>> for node in one.nodes + other.nodes:
    ...     total.add_node(node)
    >>> total.result()
    tensor([10.])
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add_node(self, node: Node) -> None:
        """Add the next leaf, or the next node of another tree; takes its tensor over."""
        while self.nodes and self.nodes[-1].is_left_of(node):
            node = Node(node.level + 1, node.index // 2, self.nodes.pop().value.add_(node.value))
        self.nodes.append(node)

    def result(self) -> Tensor:
        """The sum of all leaves, incomplete nodes from the last to the first; can be asked for once."""
        total = self.nodes.pop().value
        while self.nodes:
            total = self.nodes.pop().value.add_(total)
        return total


@dataclass
class Node:
    """A complete subtree."""

    level: int
    index: int
    value: Tensor

    def is_left_of(self, other: Node) -> bool:
        """Whether both are the halves of one node."""
        return self.level == other.level and self.index % 2 == 0 and other.index == self.index + 1


class Processes:
    """The processes of a run; one alone is the same with nothing to exchange.

    Args:
        rank: the number of this process.
        size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def from_environment(cls, device: str = "cpu") -> Processes:
        """What torchrun started, computing on this kind of device; a process started otherwise is alone."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        return cls(torch.distributed.get_rank(), size)

    def owned(self, count: int) -> range:
        """The leaves that are this process's own: nearly equal runs, in order of rank."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def total(self, tree: TreeSum, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """The sum over the leaves of all processes, on every process."""
        if self.size == 1:
            return tree.result()
        layouts: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        torch.distributed.all_gather_object(layouts, [(node.level, node.index) for node in tree.nodes])
        merged = TreeSum()
        for rank, layout in enumerate(layouts):
            for position, (level, index) in enumerate(layout):
                if self.rank == 0:
                    value = tree.nodes[position].value if rank == 0 else torch.empty(shape, device=device)
                    if rank:
                        torch.distributed.recv(value, rank)
                    merged.add_node(Node(level, index, value))
                elif rank == self.rank:
                    torch.distributed.send(tree.nodes[position].value.contiguous(), 0)
        total = merged.result() if self.rank == 0 else torch.empty(shape, device=device)
        torch.distributed.broadcast(total, 0)
        return total

    def sum_count(self, count: int) -> int:
        """An integer summed over all processes."""
        if self.size == 1:
            return count
        counts: list[int] = [0] * self.size
        torch.distributed.all_gather_object(counts, count)
        return sum(counts)

    def gather(self, items: list[object]) -> list[object]:
        """The items of all processes in order of rank, on every process."""
        if self.size == 1:
            return items
        lists: list[list[object]] = [[] for _ in range(self.size)]
        torch.distributed.all_gather_object(lists, items)
        return [item for part in lists for item in part]

    def share(self, value: object, owner: int) -> object:
        """An object of one process, on every process."""
        if self.size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, owner)
        return box[0]

    def wait(self) -> None:
        """For all others."""
        if self.size > 1:
            torch.distributed.barrier()
