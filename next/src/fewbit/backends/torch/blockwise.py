# SPDX-License-Identifier: Apache-2.0
"""A language model passed block by block: what the layers of a block read, sums over that, and the block's outputs.

Two streams of hidden states travel through the blocks: that of the quantized model and that of the float model.
Held-out batches travel along and enter no sum; after the last block they show what was lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.torch.activations import Activations
from fewbit.backends.torch.block_model import BlockModel, Call, is_transposed, linear_layers, weight_of
from fewbit.backends.torch.processes import Node, Processes, TreeSum
from fewbit.errors import UsageError
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max

_WIDE, _WIDE_LEAVES = 8192, 8
"""Inputs of a layer above which the tree of sums has few leaves: every pending sum takes 4 · width² bytes."""
_STRIP = 4096
"""Rows of a sum that are computed at a time on a GPU."""
_MOST_KEPT = 4 << 30
"""Bytes of the float model's activations in one block that are kept in memory instead of computed again."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers of a block that read the same tensor.

    Args:
        layers: their names in the block.
        residual: the module whose input the output of the only layer is added to; `None` if there is none.
    """

    layers: tuple[str, ...]
    residual: str | None


@dataclass
class Moments:
    """Means over tokens of what a group of layers reads: x in the quantized model, x' in the float model.

    Args:
        hessian: x xᵀ, [in, in].
        input_gap: (x' - x) xᵀ, [in, in]; `None` with `output_gap`, or if the streams are equal.
        output_gap: (W (x' - x) + s' - s) xᵀ, [out, in], s the residual stream that the layer's output is added to.
        tokens: how many there were.
    """

    hessian: Tensor
    input_gap: Tensor | None
    output_gap: Tensor | None
    tokens: int


class BlockStream:
    """Batches of token sequences on their way through the blocks of a model.

    Args:
        model: what they pass through.
        batches: for calibration: arguments of the model by name, [sequences, tokens] each.
        held_out: to measure with.
        correct: carry the stream of the float model along, so that layers make up for earlier losses.
        input_grids: what the input of a layer is rounded to at run time, by the layer's full name.
        processes: that share the batches; every one of them solves and carries the same weights.
        memory: limits, see `Activations`.
    """

    def __init__(
        self,
        model: BlockModel,
        batches: Sequence[Mapping[str, Tensor]],
        held_out: Sequence[Mapping[str, Tensor]] = (),
        *,
        correct: bool = True,
        input_grids: Mapping[str, QuantizationGrid] | None = None,
        processes: Processes | None = None,
        memory: Mapping[str, Any] | None = None,
    ):
        self.model, self.correct, self.input_grids = model, correct, input_grids or {}
        self.processes = processes or Processes()
        wide = any(weight_of(layer).shape[1] > _WIDE for _, layer in linear_layers(model.blocks[0]))
        # decided by the job, never by the number of processes
        self._leaf_size = max(1, -(-len(batches) // _WIDE_LEAVES)) if wide else 1
        own = self._own_batches(len(batches))
        judged = self.processes.owned(len(held_out))
        self._first = own.start
        self._batches = [batches[number] for number in own] + [held_out[number] for number in judged]
        self._calibration = range(len(own))
        self._held_out = range(len(own), len(self._batches))
        hidden, self._calls = model.first_inputs(self._batches)
        self._masks = [_padding(batch) for batch in self._batches]
        place = {"device": model.device, **(memory or {})}
        self.quantized = Activations(hidden, **place)
        self.reference = Activations(list(hidden), **place)
        self._groups: dict[tuple[str, ...], list[LayerGroup]] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="fewbit-load")
        self._next: tuple[int, Future[nn.Module]] | None = None

    def __len__(self) -> int:
        return len(self.model.block_names)

    def leaves(self, *, wide: bool) -> list[int]:
        """For each calibration batch of this process its leaf in the tree of sums."""
        size = self._leaf_size if wide else 1
        return [(self._first + number) // size for number in self._calibration]

    def _own_batches(self, count: int) -> range:
        """Complete leaves only, so that every sum has the same leaves whoever makes it."""
        size = self._leaf_size
        leaves = -(-count // size)
        if leaves < self.processes.size:
            raise UsageError(
                f"{self.processes.size} processes share {leaves} batches", code="processes-many", param="batch_size",
                expected="at least one batch per process", hint="fewer processes, or a smaller {batch_size}",
            )  # fmt: skip
        own = self.processes.owned(leaves)
        return range(own.start * size, min(own.stop * size, count))

    def open(self, index: int) -> OpenBlock:
        """Load a block; the one after it is read meanwhile."""
        block = self._next[1].result() if self._next and self._next[0] == index else self.model.load_block(index)
        self._next = None
        if index + 1 < len(self):
            self._next = (index + 1, self._loader.submit(self.model.load_block, index + 1))
        return OpenBlock(self, index, block)

    def outputs(self) -> Iterator[tuple[Tensor, Tensor, Mapping[str, Tensor]]]:
        """After the last block, per held-out batch: logits of the float and of the quantized model, and the batch."""
        for number in self._held_out:
            batch = self._batches[number]
            original = self.model.logits(self.reference[number], batch)
            yield original, self.model.logits(self.quantized[number], batch), batch

    def close(self) -> None:
        """Stop reading ahead."""
        self._loader.shutdown(cancel_futures=True)


class OpenBlock:
    """One block on the device, its float copy, and the batches that wait before it."""

    def __init__(self, stream: BlockStream, index: int, block: nn.Module):
        self.name = stream.model.block_names[index]
        self._stream, self._block, self._calls = stream, block, stream._calls[index]
        self._float = copy.deepcopy(block)
        self._wanted: dict[int, dict[str, Tensor]] | None = None
        self.layers = dict(linear_layers(block))
        for layer, module in self.layers.items():
            if (grid := stream.input_grids.get(f"{self.name}.{layer}")) is not None:
                module.register_forward_pre_hook(_rounding_hook(grid))
        if stream.correct and self._bytes_to_keep() <= _MOST_KEPT:
            self._wanted = {}
            self._advance(stream.reference, self._float, self._wanted)

    def groups(self) -> list[LayerGroup]:
        """The groups of layers in the order they run; blocks of the same structure are looked at once."""
        structure = tuple(name for name, _ in self._block.named_modules())
        known = self._stream._groups
        if structure not in known:
            known[structure] = find_groups(self._block, self._stream.quantized[0], self._calls[0])
        return known[structure]

    def weight(self, layer: str) -> Tensor:
        """The weight of a layer, [out, in]."""
        return weight_of(self.layers[layer]).detach()

    def set_weight(self, layer: str, values: Tensor) -> None:
        """Replace the weight of a layer, [out, in]."""
        module = self.layers[layer]
        parameter: Tensor = module.weight  # type: ignore[assignment]
        parameter.data.copy_(values.T if is_transposed(module) else values)

    @torch.no_grad()
    def moments(self, group: LayerGroup) -> Moments:
        """Means over the calibration tokens of what a group reads, with the weights as they are now."""
        stream, layer = self._stream, group.layers[0]
        weight = self.weight(layer)
        leaves = stream.leaves(wide=weight.shape[1] > _WIDE)
        sums = _MomentSums()
        for leaf, (x, gap) in zip(leaves, self._inputs(group, weight)):
            sums.add(leaf, x, gap)
            del x, gap  # or they would be there while the next batch runs
        sums.close_leaf()
        processes, device = stream.processes, stream.model.device
        tokens = processes.sum_count(sums.tokens)
        height, width = weight.shape
        hessian = processes.total(sums.hessian, (width, width), device).div_(tokens)
        if not stream.correct:
            return Moments(hessian, None, None, tokens)
        shape = (height, width) if group.residual else (width, width)
        gap = processes.total(sums.gap, shape, device).div_(tokens)
        return Moments(hessian, None if group.residual else gap, gap if group.residual else None, tokens)

    def _inputs(self, group: LayerGroup, weight: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Per calibration batch what a group reads, [tokens, in], and what it or its output lacks."""
        stream, layer = self._stream, group.layers[0]
        numbers = stream._calibration
        watched = [layer] + ([group.residual] if group.residual else [])
        rerun = stream.correct and self._wanted is None
        references = stream.reference.read(numbers) if rerun else iter([None] * len(numbers))
        for number, hidden, reference in zip(numbers, stream.quantized.read(numbers), references):
            call, mask = self._calls[number], stream._masks[number]
            inputs, _ = capture(self._block, watched, hidden, call, stop=layer)
            x = _rows(inputs[layer], mask)
            if not stream.correct:
                yield x, None
                del x, inputs
                continue
            if self._wanted is not None:
                wanted = self._wanted[number]
            else:
                assert reference is not None
                wanted, _ = capture(self._float, watched, reference, call, stop=layer)
            gap = _rows(wanted[layer], mask) - x
            if group.residual:
                gap = gap @ weight.T
                gap += _rows(wanted[group.residual], mask) - _rows(inputs[group.residual], mask)
            del wanted, inputs
            yield x, gap
            del x, gap

    @torch.no_grad()
    def advance(self) -> None:
        """Send all batches through the block: the quantized stream with the new weights, the float one with the old."""
        self._advance(self._stream.quantized, self._block)
        if self._wanted is None:
            self._advance(self._stream.reference, self._float)

    @torch.no_grad()
    def _advance(
        self, activations: Activations, block: nn.Module, inputs: dict[int, dict[str, Tensor]] | None = None
    ) -> None:
        """Send batches through the block, and keep what its layers read if `inputs` is given."""
        stream = self._stream
        skipped = activations is stream.reference and not stream.correct
        numbers = stream._held_out if skipped else range(len(stream._batches))
        groups = self.groups() if inputs is not None else []
        names = list(dict.fromkeys(name for group in groups for name in (group.layers[0], group.residual) if name))
        for number, hidden in zip(numbers, activations.read(numbers)):
            if inputs is None or number in stream._held_out:
                activations[number] = self._calls[number](block, hidden)
            else:
                inputs[number], output = capture(block, names, hidden, self._calls[number])
                assert output is not None
                activations[number] = output

    def _bytes_to_keep(self) -> int:
        """What the inputs and residuals of all groups take; an accelerator computes them again."""
        stream = self._stream
        if stream.model.device.type != "cpu":
            return _MOST_KEPT + 1
        tokens = sum(batch["input_ids"].numel() for batch in stream._batches[: len(stream._calibration)])
        widths = sum(sum(self.weight(group.layers[0]).shape) for group in self.groups())
        return tokens * widths * stream.model.dtype.itemsize


@torch.no_grad()
def find_groups(block: nn.Module, hidden: Tensor, call: Call) -> list[LayerGroup]:
    """The groups of layers of a block in the order they run.

    One batch runs. The output y of a layer is added to the residual stream s if some tensor of the block is s + y, bit
    by bit.

    Args:
        block: with float weights.
        hidden: its input, [sequences, tokens, features].
        call: what else it gets.
    """
    layers = dict(linear_layers(block))
    reads: dict[int, list[str]] = {}
    inputs: list[tuple[str, Tensor]] = []  # of every module, in the order they run; keeps tensors alive and ids unique
    outputs: dict[str, Tensor] = {}

    def before(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if (value := _first_tensor(args, kwargs)) is not None:
                inputs.append((name, value))
                if name in layers:
                    reads.setdefault(id(value), []).append(name)

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            outputs[name] = output

        return hook

    modules = [(name, module) for name, module in block.named_modules() if name]
    handles = [module.register_forward_pre_hook(before(name), with_kwargs=True) for name, module in modules]
    handles += [layers[name].register_forward_hook(after(name)) for name in layers]
    try:
        end = call(block, hidden)
    finally:
        for handle in handles:
            handle.remove()
    values = [value for _, value in inputs] + [end]
    return [
        LayerGroup(tuple(names), _residual(outputs[names[0]], inputs, values) if len(names) == 1 else None)
        for names in reads.values()
    ]


def capture(
    block: nn.Module, names: Sequence[str], hidden: Tensor, call: Call, *, stop: str | None = None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Inputs of some modules in one forward pass, and its output; with `stop` it ends before that module."""
    values: dict[str, Tensor] = {}
    output = None

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            value = _first_tensor(args, kwargs)
            assert value is not None
            values[name] = value
            if name == stop:
                raise _Stop

        return hook

    handles = [block.get_submodule(name).register_forward_pre_hook(hook_of(name), with_kwargs=True) for name in names]
    try:
        output = call(block, hidden)
    except _Stop:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return values, output


class _MomentSums:
    """Sums of xᵀx and gapᵀx over the leaves of one process."""

    def __init__(self) -> None:
        self.hessian, self.gap, self.tokens = TreeSum(), TreeSum(), 0
        self._leaf: int | None = None
        self._open: dict[str, Tensor] = {}

    def add(self, leaf: int, x: Tensor, gap: Tensor | None) -> None:
        """One batch of a leaf: x [tokens, in], gap [tokens, in or out]."""
        if leaf != self._leaf:
            self.close_leaf()
            self._leaf = leaf
        _accumulate(self._open, "hessian", x, x)
        if gap is not None:
            _accumulate(self._open, "gap", gap, x)
        self.tokens += len(x)

    def close_leaf(self) -> None:
        """The open leaf enters the tree."""
        for key, tree in (("hessian", self.hessian), ("gap", self.gap)):
            if key in self._open and self._leaf is not None:
                tree.add_node(Node(0, self._leaf, self._open.pop(key)))


class _Stop(Exception):
    """Ends a forward pass where nothing after it is needed."""


def _rounding_hook(grid: QuantizationGrid) -> Callable[..., Tensor]:
    """Round the input of a layer as its runtime does, with scales computed in each call."""

    def hook(module: nn.Module, args: tuple[Any, ...]) -> Tensor:
        x: Tensor = args[0]
        shape = tuple(x.shape)
        block = grid.activation_block(shape)
        low, high = BlockShape(shape, block).extremes(x.float())
        return fake_quantize(x, qparams_from_min_max(low, high, grid, block))

    return hook


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


def _residual(output: Tensor, inputs: Sequence[tuple[str, Tensor]], values: Sequence[Tensor]) -> str | None:
    """The first module whose input is the tensor that a layer's output is added to."""
    for name, state in inputs:
        if state.shape == output.shape and state is not output:
            total = state + output
            if any(value is not state and value.shape == total.shape and torch.equal(value, total) for value in values):
                return name
    return None


def _padding(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Which tokens are real, [sequences, tokens]; `None` if all are."""
    mask = batch.get("attention_mask")
    return None if mask is None or bool(mask.all()) else mask.bool()


def _rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """[tokens, features], padding left out."""
    return x.flatten(0, -2) if mask is None else x[mask.to(x.device)]


def _accumulate(sums: dict[str, Tensor], key: str, left: Tensor, right: Tensor) -> None:
    """Add leftᵀ right in float32; on a CPU half of a symmetric product is computed."""
    if key not in sums:
        sums[key] = torch.zeros(left.shape[1], right.shape[1], device=left.device)
    if left.is_cuda and left.dtype != torch.float32:
        for part, columns in zip(sums[key].split(_STRIP), left.split(_STRIP, 1)):  # products take little memory
            part.add_(torch.mm(columns.T, right, out_dtype=torch.float32))
        return
    if left is right and not left.is_cuda:
        _add_gram(sums[key], left.float())
    else:
        sums[key].addmm_(left.float().T, right.float())


def _add_gram(total: Tensor, x: Tensor, tile: int = 384) -> None:
    """Add xᵀx: columns of tiles from the diagonal down are computed, the rest is copied."""
    width = x.shape[1]
    for start in range(0, width, tile):
        stop = min(start + tile, width)
        total[start:, start:stop].addmm_(x[:, start:].T, x[:, start:stop])
        total[start:stop, stop:] = total[stop:, start:stop].T
