# SPDX-License-Identifier: Apache-2.0
"""Blocks of ggml that are nearest to given values: least Σ h (x - x̂)².

Elements that share a scale are fitted alone first: several ranges give integers, integers give their best scale (and
offset) by least squares, twice. In the K types scales of sub-blocks are themselves integers times one float16, so a
second stage alternates between the integers of the elements, those of the sub-blocks, and the two numbers of the block;
a step that does not lower the error of a block is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fewbit.checkpoints._gguf.blocks import Blocks, BlockType

if TYPE_CHECKING:
    from torch import Tensor

_RANGES = (1.0, 0.92, 0.84, 0.76, 1.08)
"""Of the range between the extremes."""
_COARSE_RANGES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""The same for types of two and three bits."""
_CHUNK = 1 << 19
_ROUNDS = 3
_TINY = 1e-30


def search_blocks(values: Tensor, kind: BlockType, importance: Tensor | None = None) -> Blocks:
    """The nearest blocks of a type.

    Args:
        values: float32 [rows, columns]; columns are a multiple of the block size.
        kind: the type.
        importance: h per column, [columns]: the second moment of the input; all equal by default.
    """
    import torch

    rows, columns = values.shape
    parts = kind.block // kind.part
    h = None
    if importance is not None:
        weight = importance.float()
        weight = weight / weight.mean().clamp(min=_TINY) + 0.01
        h = weight.reshape(1, columns // kind.block, parts, kind.part)
    step = max(_CHUNK // columns, 1)
    results = []
    for start in range(0, rows, step):
        x = values[start : start + step].float().reshape(-1, columns // kind.block, parts, kind.part)
        part_h = torch.ones(1, 1, 1) if h is None else h.expand(x.shape).reshape(-1, parts, kind.part)
        results.append(_search(x.reshape(-1, parts, kind.part), part_h, kind))
    return _joined(results)


def _search(x: Tensor, h: Tensor, kind: BlockType) -> Blocks:
    import torch

    unit = x.abs().amax((1, 2), keepdim=True)  # squares of very large or small weights leave float32
    unit = torch.where(unit > 0, unit, torch.ones_like(unit))
    x = x / unit
    scale, offset = _fit_with_offset(x, h, kind) if kind.offset else (_fit(x, h, kind), None)
    unit = unit[:, :, 0]
    if kind.scales is None:
        d = _half(scale * unit)[:, 0]
        m = None if offset is None else _half(-offset * unit)[:, 0]
        return _encode(x * unit[..., None], Blocks(kind, x, d, m))
    blocks = _descend(x, h, _on_lattice(x, kind, scale, offset))
    # Back to the unit of the weights: the two numbers of a block are rounded there, and the integers follow.
    d = _half(blocks.d * unit[:, 0])
    m = None if blocks.m is None else _half(blocks.m * unit[:, 0])
    x = x * unit[..., None]
    blocks = _encode(x, replace(blocks, d=d, m=m))
    return _neighbors(x, h, blocks)


def _fit(x: Tensor, h: Tensor, kind: BlockType) -> Tensor:
    """The best scale of each part, with a sign: the integer of largest magnitude is the lowest one; [N, parts]."""
    import torch

    low, high = x.amin(-1), x.amax(-1)
    start = torch.where(-low >= high, low, high) / kind.lowest
    weighted = x * h
    best, gain = start, torch.full_like(start, -1.0)

    def attempt(scale: Tensor) -> None:
        nonlocal best, gain
        q = (x / _safe(scale)[..., None]).round_().clamp_(kind.lowest, kind.highest)
        product, energy = (weighted * q).sum(-1), (q.square_().mul_(h)).sum(-1)
        explained = product * product / energy.clamp(min=_TINY)
        better = (explained > gain) & (product != 0)
        best = torch.where(better, product / energy.clamp(min=_TINY), best)
        gain = torch.where(better, explained, gain)

    for factor in _ranges(kind):
        attempt(start * factor)
        if kind.highest < 32:
            attempt(start * -factor)
    attempt(best)
    attempt(best)
    return best


def _fit_with_offset(x: Tensor, h: Tensor, kind: BlockType) -> tuple[Tensor, Tensor]:
    """The best scale a and offset b of each part, x ≈ a q - b; b is not negative in K types; both [N, parts]."""
    import torch

    low, high = x.amin(-1), x.amax(-1)
    if kind.scales is not None:
        low = low.clamp(max=0)
    start, start_offset = (high - low) / kind.highest, -low
    hx = h * x
    sum_h, sum_x = (h.expand_as(x)).sum(-1), hx.sum(-1)
    best, best_offset = start, start_offset
    error = torch.full_like(start, torch.inf)

    def attempt(scale: Tensor, offset: Tensor) -> None:
        nonlocal best, best_offset, error
        q = ((x + offset[..., None]) / _safe(scale)[..., None]).round_().clamp_(kind.lowest, kind.highest)
        hq = h * q
        qq, qx, sum_q = (hq * q).sum(-1), (hx * q).sum(-1), hq.sum(-1)
        determinant = sum_h * qq - sum_q * sum_q
        safe = torch.where(determinant > 0, determinant, torch.ones_like(determinant))
        a, b = (sum_h * qx - sum_q * sum_x) / safe, (sum_q * qx - qq * sum_x) / safe
        alone = (determinant <= 1e-7 * sum_h * qq) | (a <= 0)
        if kind.scales is not None:
            alone |= b < 0
        a = torch.where(alone, qx / qq.clamp(min=_TINY), a)
        b = torch.where(alone, torch.zeros_like(b), b)
        loss = a * a * qq - 2 * a * b * sum_q + b * b * sum_h - 2 * a * qx + 2 * b * sum_x
        better = (loss < error) & (a > 0)
        best, best_offset = torch.where(better, a, best), torch.where(better, b, best_offset)
        error = torch.where(better, loss, error)

    for factor in _ranges(kind):
        attempt(start * factor, start_offset)
        if factor < 1:
            attempt(start * factor, start_offset * factor)
    attempt(best, best_offset)
    attempt(best, best_offset)
    return best, best_offset


def _on_lattice(x: Tensor, kind: BlockType, scale: Tensor, offset: Tensor | None) -> Blocks:
    """Integer scales near the given ones; the largest is exact."""
    import torch

    assert kind.scales is not None
    lowest, highest = kind.scales
    largest = scale.gather(1, scale.abs().argmax(1, keepdim=True))
    d = largest / (lowest or highest)
    scales = (scale / _safe(d)).round_().clamp_(lowest, highest)
    if offset is None:
        return Blocks(kind, x, d[:, 0], scales=scales)
    m = offset.amax(1, keepdim=True) / highest
    offsets = (offset / _safe(m)).round_().clamp_(0, highest)
    return Blocks(kind, x, d[:, 0], torch.where(m > 0, m, torch.zeros_like(m))[:, 0], scales, offsets)


def _descend(x: Tensor, h: Tensor, start: Blocks) -> Blocks:
    """Alternate between elements, sub-blocks and the block; the best of all rounds."""
    now = best = _encode(x, start)
    error = _error(x, h, best).sum(1)
    for _ in range(_ROUNDS):
        now = _encode(x, _refit_block(x, h, _refit_parts(x, h, now)))
        loss = _error(x, h, now).sum(1)
        best, error = _choose(loss < error, now, best), error.minimum(loss)
    return best


def _refit_parts(x: Tensor, h: Tensor, now: Blocks) -> Blocks:
    """The best integers of the sub-blocks for the elements' integers as they are."""
    import torch

    assert now.scales is not None and now.type.scales is not None
    lowest, highest = now.type.scales
    d = _safe(now.d)[:, None]
    hq = h * now.codes
    qq, qx = (hq * now.codes).sum(-1), (hq * x).sum(-1)
    if now.m is None:
        scales = torch.where(qq > 0, qx / (d * qq.clamp(min=_TINY)), now.scales)
        return replace(now, scales=scales.round_().clamp_(lowest, highest))
    m, sum_q, sum_x, sum_h = _safe(now.m)[:, None], hq.sum(-1), (h * x).sum(-1), h.expand_as(x).sum(-1)
    determinant = sum_h * qq - sum_q * sum_q
    free = torch.where(determinant > 0, (sum_h * qx - sum_q * sum_x) / (d * determinant.clamp(min=_TINY)), now.scales)
    best_loss = None
    for step in (-1.0, 0.0, 1.0):
        scales = (free.round() + step).clamp_(lowest, highest)
        offsets = ((d * scales * sum_q - sum_x) / (m * sum_h)).round_().clamp_(0, highest)
        a, b = d * scales, m * offsets
        loss = a * a * qq - 2 * a * b * sum_q + b * b * sum_h - 2 * a * qx + 2 * b * sum_x
        if best_loss is None:
            best_loss, best_scales, best_offsets = loss, scales, offsets
            continue
        better = loss < best_loss
        best_loss = torch.where(better, loss, best_loss)
        best_scales, best_offsets = torch.where(better, scales, best_scales), torch.where(better, offsets, best_offsets)
    return replace(now, scales=best_scales, offsets=best_offsets)


def _refit_block(x: Tensor, h: Tensor, now: Blocks) -> Blocks:
    """The best two numbers of a block for all integers as they are."""
    import torch

    assert now.scales is not None
    u = now.scales[..., None] * now.codes
    hu = h * u
    uu, ux = (hu * u).sum((1, 2)), (hu * x).sum((1, 2))
    alone = torch.where(uu > 0, ux / uu.clamp(min=_TINY), now.d)
    if now.m is None or now.offsets is None:
        return replace(now, d=alone)
    t = now.offsets[..., None]
    tt, ut, tx = (h * t * t).expand_as(u).sum((1, 2)), (hu * t).sum((1, 2)), (h * t * x).sum((1, 2))
    determinant = uu * tt - ut * ut
    safe = torch.where(determinant > 1e-6 * uu * tt, determinant, torch.ones_like(determinant))
    d, m = (tt * ux - ut * tx) / safe, (ut * ux - uu * tx) / safe
    good = (determinant > 1e-6 * uu * tt) & (d > 0) & (m > 0)
    rest = torch.where(tt > 0, now.d, alone)  # without offsets there is only one number to find
    return replace(now, d=torch.where(good, d, rest), m=torch.where(good, m, now.m))


def _neighbors(x: Tensor, h: Tensor, now: Blocks) -> Blocks:
    """Every sub-block with the best integers next to its own; they are independent once d and m are fixed."""
    assert now.scales is not None and now.type.scales is not None
    lowest, highest = now.type.scales
    best, error = now, _error(x, h, now)
    for up in (0, -1, 1):
        for along in (0,) if now.offsets is None else (0, -1, 1):
            if not up and not along:
                continue
            offsets = None if now.offsets is None else (now.offsets + along).clamp_(0, highest)
            scales = (now.scales + up).clamp_(lowest, highest)
            candidate = _encode(x, replace(now, scales=scales, offsets=offsets))
            loss = _error(x, h, candidate)
            best, error = _choose(loss < error, candidate, best), error.minimum(loss)
    return best


def _encode(x: Tensor, blocks: Blocks) -> Blocks:
    """The same scales, every element on the nearest value."""
    step = blocks.d[:, None] if blocks.scales is None else blocks.d[:, None] * blocks.scales
    if blocks.m is not None:
        shift = -blocks.m[:, None] if blocks.offsets is None else blocks.m[:, None] * blocks.offsets
        x = x + shift[..., None]
    import torch

    step = torch.where(step == 0, torch.full_like(step, torch.inf), step)
    codes = (x / step[..., None]).round_().clamp_(blocks.type.lowest, blocks.type.highest)
    return replace(blocks, codes=codes + 0.0)  # no negative zeros


def _error(x: Tensor, h: Tensor, blocks: Blocks) -> Tensor:
    """By part, [N, parts]."""
    difference = blocks.values().sub_(x)
    return difference.square_().mul_(h).sum(-1)


def _choose(better: Tensor, new: Blocks, old: Blocks) -> Blocks:
    """The new content for the blocks [N], or the sub-blocks [N, parts], where it is better."""
    import torch

    def pick(ours: Tensor | None, theirs: Tensor | None) -> Tensor | None:
        if ours is None or theirs is None or ours is theirs or better.ndim > ours.ndim:
            return theirs
        return torch.where(better.reshape(*better.shape, *[1] * (ours.ndim - better.ndim)), ours, theirs)

    return _combine(pick, new, old)


def _joined(results: list[Blocks]) -> Blocks:
    import torch

    if len(results) == 1:
        return results[0]
    first = results[0]

    def join(name: str) -> Tensor | None:
        if getattr(first, name) is None:
            return None
        return torch.cat([getattr(blocks, name) for blocks in results])

    codes, d = join("codes"), join("d")
    assert codes is not None and d is not None
    return Blocks(first.type, codes, d, join("m"), join("scales"), join("offsets"))


def _combine(pick: Callable[[Tensor | None, Tensor | None], Tensor | None], new: Blocks, old: Blocks) -> Blocks:
    codes, d = pick(new.codes, old.codes), pick(new.d, old.d)
    assert codes is not None and d is not None
    return Blocks(old.type, codes, d, pick(new.m, old.m), pick(new.scales, old.scales), pick(new.offsets, old.offsets))


def _ranges(kind: BlockType) -> tuple[float, ...]:
    return _COARSE_RANGES if kind.highest - kind.lowest < 8 else _RANGES


def _half(numbers: Tensor) -> Tensor:
    import torch

    return numbers.to(torch.float16).float()


def _safe(numbers: Tensor) -> Tensor:
    """Nothing to divide by zero with: a part of zeros has the integers zero whatever its scale."""
    import torch

    return torch.where(numbers == 0, torch.ones_like(numbers), numbers)
