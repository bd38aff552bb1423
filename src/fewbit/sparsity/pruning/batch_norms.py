# SPDX-License-Identifier: Apache-2.0
"""Batch norms that know what comes out of layers with zeros.

A batch norm divides by the spread that its input had in training, and a pruned layer's output has another. What it
remembers is moved by as much as the calibration data say: both models normalize by the data themselves, as in training,
so that no norm sees what those before it are yet to be freed of, and mean + (m' - m) and variance · v'/v are what is
remembered from then on. The few samples' own means and spreads cancel out. It is kept if the model answers more like
the float one on samples kept aside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from fewbit.data.capturing.modes import evaluating

Item = tuple[Sequence[Any], dict[str, Any]]
_EVERY, _LEAST = 4, 8  # one item in four is kept aside, of eight at least
_ROWS = 32  # samples at a time, where items can be put together: of one alone, most norms would see little


def correct_norms(model: nn.Module, dense: nn.Module, items: Callable[[], Iterable[Item]]) -> dict[str, Any] | None:
    """Let a pruned model's batch norms follow their inputs, in place, if it answers more like the float one by that.

    Args:
        model: with zeros.
        dense: the same without; not changed.
        items: a new pass over what both are called with.

    Returns:
        How many norms there are, the distance of the answers without and with it, and whether it was kept; nothing
        where there are no batch norms, or too few items to keep some aside.
    """
    names = [name for name, each in model.named_modules() if _remembers(each) and _remembers(_at(dense, name))]
    aside = [item for number, item in enumerate(items()) if number % _EVERY == 0] if names else []
    if len(aside) * _EVERY < _LEAST:
        return None
    before, now = (_moments(each, names, items()) for each in (dense, model))
    with evaluating(model), evaluating(dense):
        wanted = [_answers(dense, item) for item in aside]
        uncorrected = _distance(model, aside, wanted)
        kept = {name: _memory(_at(model, name)) for name in names}
        for name in names:
            _set(_at(model, name), _followed(_memory(_at(dense, name)), before[name], now[name]))
        corrected = _distance(model, aside, wanted)
        if not corrected < uncorrected:
            for name in names:
                _set(_at(model, name), kept[name])
    return {
        "norms": len(names), "error": corrected, "error_uncorrected": uncorrected, "kept": corrected < uncorrected
    }  # fmt: skip


def _remembers(module: Any) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None


def _at(model: nn.Module, name: str) -> Any:
    return dict(model.named_modules()).get(name)


def _memory(norm: Any) -> tuple[Tensor, Tensor]:
    return norm.running_mean.clone(), norm.running_var.clone()


def _set(norm: Any, memory: tuple[Tensor, Tensor]) -> None:
    norm.running_mean.copy_(memory[0])
    norm.running_var.copy_(memory[1])


def _followed(
    memory: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Where a channel was constant, or became so, there is no spread to compare, and what is remembered stays."""
    spread = (before[1] > 0) & (now[1] > 0)
    ratio = torch.where(spread, now[1] / before[1].clamp(min=torch.finfo(before[1].dtype).tiny), 1.0)
    return memory[0] + (now[0] - before[0]), memory[1] * ratio


@torch.no_grad()
def _moments(model: nn.Module, names: list[str], items: Iterable[Item]) -> dict[str, tuple[Tensor, Tensor]]:
    """What each norm would remember of all items that are not kept aside, if it had seen nothing else."""
    twin = copy.deepcopy(model).eval()
    norms = {name: _at(twin, name) for name in names}
    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    for batch in _together(item for number, item in enumerate(items) if number % _EVERY):
        _answers(twin, batch)
    return {name: _memory(norm) for name, norm in norms.items()}


def _together(items: Iterable[Item]) -> Iterator[Item]:
    """Items in batches, where their tensors have the same shapes; a last one of one sample is left out."""
    held: list[Item] = []
    rows = given = 0
    for item in items:
        count = _rows(item)
        if held and (not count or _shapes(held[0]) != _shapes(item)):
            yield _joined(held)
            held, rows, given = [], 0, given + 1
        if not count:
            yield item
            continue
        held.append(item)
        rows += count
        if rows >= _ROWS:
            yield _joined(held)
            held, rows, given = [], 0, given + 1
    if held and (rows > 1 or not given):
        yield _joined(held)


def _parts(item: Item) -> list[Any]:
    return [*item[0], *item[1].values()]


def _rows(item: Item) -> int:
    """How many samples an item has; none where it holds anything but tensors with a batch axis."""
    parts = _parts(item)
    alike = parts and all(isinstance(each, Tensor) and each.ndim and len(each) == len(parts[0]) for each in parts)
    return len(parts[0]) if alike else 0


def _shapes(item: Item) -> list[Any]:
    return [tuple(each.shape[1:]) if isinstance(each, Tensor) else None for each in _parts(item)]


def _joined(items: list[Item]) -> Item:
    args = [torch.cat(parts) for parts in zip(*(each[0] for each in items))]
    return args, {name: torch.cat([each[1][name] for each in items]) for name in items[0][1]}


def _answers(model: nn.Module, item: Item) -> list[Tensor]:
    args, kwargs = item
    place = next((each.device for each in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    there = [value.to(place) if isinstance(value, Tensor) else value for value in args]
    named = {name: value.to(place) if isinstance(value, Tensor) else value for name, value in kwargs.items()}
    leaves = tree_leaves(model(*there, **named))
    return [each for each in leaves if isinstance(each, Tensor) and each.is_floating_point()]


def _distance(model: nn.Module, aside: list[Item], wanted: list[list[Tensor]]) -> float:
    """The squared distance of the answers, as a share of the answers' own square."""
    off = size = 0.0
    for item, answers in zip(aside, wanted):
        for found, other in zip(_answers(model, item), answers):
            off += float((found - other).double().square().sum())
            size += float(other.double().square().sum())
    return off / size if size else 0.0
