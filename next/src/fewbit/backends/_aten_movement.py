# SPDX-License-Identifier: Apache-2.0
"""Operators of ATen that move data, translated one by one to neutral operators; see `_aten_operators`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewbit.backends._aten_operators import Call, translates


@translates("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def _reshape(call: Call) -> bool:
    return call.emit("reshape", (call.name("self"),))


@translates("transpose", "permute", "t", "movedim", "swapaxes", "numpy_T", "mT")
def _transpose(call: Call) -> bool:
    data = call.name("self")
    order = list(range(call.rank(data)))
    if call.native == "permute":
        order = [int(axis) % len(order) for axis in call["dims"]]
    elif call.native == "movedim":
        pairs = [_axes(call[name], len(order)) for name in ("source", "destination")]
        order = [axis for axis in order if axis not in pairs[0]]
        for destination, source in sorted(zip(pairs[1], pairs[0])):
            order.insert(destination, source)
    elif call.native in ("transpose", "swapaxes"):
        names = ("dim0", "dim1") if call.native == "transpose" else ("axis0", "axis1")
        one, other = (call.axis(name, len(order)) for name in names)
        order[one], order[other] = order[other], order[one]
    elif len(order) == 2:
        order.reverse()
    else:
        return False
    return call.emit("transpose", (data,), perm=tuple(order))


def _axes(axes: int | Sequence[int], rank: int) -> list[int]:
    return [axis % rank for axis in ([axes] if isinstance(axes, int) else axes)]


@translates("cat", "concat", "stack")
def _concat(call: Call) -> bool:
    names = call.names("tensors")
    if not names:
        return False
    return call.emit(
        "concat", names, axis=call.axis("dim", call.rank(call.outputs[0])), new_axis=call.native == "stack"
    )


@translates("slice", "select", "narrow")
def _slice(call: Call) -> bool:
    data = call.name("self")
    axis = call.axis("dim", call.rank(data))
    start: Any
    stop: Any
    step: Any
    if call.native == "select":
        start = call["index"]
        stop, step = (start + 1 or None) if isinstance(start, int) else None, 1
    elif call.native == "narrow":
        start, step = call["start"], 1
        stop = start + call["length"] if isinstance(start, int) and isinstance(call["length"], int) else call["length"]
    else:
        start, stop, step = call["start"], call["end"], call["step"]
    if not all(isinstance(limit, int | None) for limit in (start, stop, step)):
        start = stop = step = None  # known at run time only
    return call.emit("slice", (data,), axis=axis, start=start, stop=stop, step=step, drop=call.native == "select")


@translates("chunk", "split", "split_with_sizes", "unbind", "tensor_split")
def _split(call: Call) -> bool:
    data = call.name("self")
    axis, drop = call.axis("dim", call.rank(data)), call.native == "unbind"
    sizes = tuple(1 if drop else call.dims(output)[axis] for output in call.outputs)
    return call.emit("split", (data,), axis=axis, sizes=sizes, drop=drop)


@translates("expand", "broadcast_to", "expand_as")
def _expand(call: Call) -> bool:
    return call.emit("expand", (call.name("self"),))


@translates("repeat_interleave")
def _repeat_interleave(call: Call) -> bool:
    data, times = call.name("self"), call.get("repeats")
    if not isinstance(times, int) or call.get("dim") is None:
        return False
    return call.emit("repeat", (data,), axis=call.axis("dim", call.rank(data)), times=times, interleave=True)


@translates("repeat", "tile")
def _repeat(call: Call) -> bool:
    """Copies along several axes: one node per axis."""
    data = call.name("self")
    times = call.get("repeats") or call.get("dims")
    if not all(isinstance(count, int) for count in times) or len(times) != call.rank(data):
        return False
    axes = [axis for axis, count in enumerate(times) if count != 1]
    shape = list(call.dims(data))
    for axis in axes[:-1]:
        shape[axis] *= times[axis]
        result = call.temporary(tuple(shape))
        call.emit("repeat", (data,), (result,), axis=axis, times=times[axis], interleave=False)
        data = result
    if not axes:
        return call.emit("identity", (data,))
    return call.emit("repeat", (data,), axis=axes[-1], times=times[axes[-1]], interleave=False)


@translates("flip", "roll")
def _permuted(call: Call) -> bool:
    """Elements of one axis in another order."""
    data, axes = call.name("self"), list(call["dims"])
    shifts = call.get("shifts", [0] * len(axes))
    if not axes or not call.dims(data):
        return False
    for position, (axis, shift) in enumerate(zip(axes, shifts)):
        axis %= call.rank(data)
        size = call.dims(data)[axis]
        order = [*range(size)][::-1] if call.native == "flip" else [(i - shift) % size for i in range(size)]
        last = position == len(axes) - 1
        result = None if last else (call.temporary(call.dims(data)),)
        call.emit("gather", (data,), result, axis=axis, indices=tuple(order))
        data = result[0] if result else data
    return True


@translates("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def _pad(call: Call) -> bool:
    data = call.name("self")
    widths = call.get("pad") or call.get("padding")
    if not all(isinstance(width, int) for width in widths):
        return False
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)][::-1]
    pads = ((0, 0),) * (call.rank(data) - len(pairs)) + tuple(pairs)
    constant = call.native == "constant_pad_nd" or call.get("mode") == "constant"
    return call.emit("pad", (data,), pads=pads, value=float(call.get("value", 0.0)) if constant else None)


@translates("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def _shuffle(call: Call) -> bool:
    """A reshape, a transposition, a reshape."""
    data = call.name("self")
    if call.rank(data) != 4:
        return False
    n, c, h, w = call.dims(data)
    inner: tuple[int, ...]
    order: tuple[int, ...]
    if call.native == "channel_shuffle":
        groups = call["groups"]
        inner, order = (n, groups, c // groups, h, w), (0, 2, 1, 3, 4)
    elif call.native == "pixel_shuffle":
        r = call["upscale_factor"]
        inner, order = (n, c // r**2, r, r, h, w), (0, 1, 4, 2, 5, 3)
    else:
        r = call["downscale_factor"]
        inner, order = (n, c, h // r, r, w // r, r), (0, 1, 3, 5, 2, 4)
    split = call.temporary(inner)
    call.emit("reshape", (data,), (split,))
    turned = call.temporary(tuple(inner[axis] for axis in order))
    call.emit("transpose", (split,), (turned,), perm=order)
    return call.emit("reshape", (turned,))


@translates("dropout", "alpha_dropout", "feature_dropout", "contiguous", "clone", "alias", "detach", "lift_fresh_copy",
            "identity", "native_dropout")  # fmt: skip
def _identity(call: Call) -> bool:
    return call.emit("identity", (call.name("self") or call.name("input"),))


@translates("to", "_to_copy", "type_as", "float", "half")
def _cast(call: Call) -> bool:
    return call.emit("cast", (call.name("self"),))
