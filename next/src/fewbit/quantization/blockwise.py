# SPDX-License-Identifier: Apache-2.0
"""Weight quantization of a language model, block by block.

The inputs of a block are cached. For each group of layers that read the same tensor, the block runs in batches up to
them, sums are taken, the weights are solved and replaced: later groups see what earlier ones lost. Then the block runs
once more and gives the inputs of the next one (docs/quantization.md has the figures for each of these choices).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fewbit.algorithms._base import InputMoments, LayerProblem, WeightAlgorithm
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array, namespace
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.progress import Bar
from fewbit.quantization.journal import Journal


class BlockSequence(Protocol):
    """What a backend offers of a model that runs block by block."""

    processes: Any
    """Those that share the batches: `rank`, `size`, `share`, `wait`."""

    def __len__(self) -> int: ...

    def open(self, index: int) -> Any:
        """The block with `name`, `groups`, `weight`, `set_weight`, `moments`, `advance`."""
        ...


def quantize_blocks(
    stream: BlockSequence,
    grids: Mapping[str, QuantizationGrid],
    algorithm: WeightAlgorithm,
    journal: Journal,
    bar: Bar,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Quantize the layers of all blocks; the weights are in the journal afterwards.

    Args:
        stream: the model with its calibration batches.
        grids: what each layer becomes, by full name; layers that are not in it stay in float.
        algorithm: solves one weight.
        journal: finished blocks in it are passed, not solved again.
        bar: counts blocks.
        settings: of the algorithm.

    Returns:
        Facts by layer: the output error relative to the output, and that of plain rounding.
    """
    facts: dict[str, dict[str, Any]] = {}
    processes = stream.processes
    processes.wait()
    finished = journal.blocks()
    for index in bar.track(range(len(stream))):
        block = stream.open(index)
        if index < finished:
            tensors, block_facts = journal.read(index)
            for layer, tensor in tensors.items():
                block.set_weight(layer.removeprefix(f"{block.name}."), tensor.dequantize())
        else:
            tensors, block_facts = _solve_block(block, grids, algorithm, settings or {}, processes)
            if processes.rank == 0:
                journal.write(index, tensors, block_facts)
        block.advance()
        facts |= block_facts
    processes.wait()
    return facts


def _solve_block(
    block: Any,
    grids: Mapping[str, QuantizationGrid],
    algorithm: WeightAlgorithm,
    settings: Mapping[str, Any],
    processes: Any,
) -> tuple[dict[str, QTensor], dict[str, dict[str, Any]]]:
    """The layers of a block; each is solved by one of the processes and known to all."""
    tensors, facts = dict[str, QTensor](), dict[str, dict[str, Any]]()
    for group in block.groups():
        layers = {layer: f"{block.name}.{layer}" for layer in group.layers if f"{block.name}.{layer}" in grids}
        if not layers:
            continue
        sums = block.moments(group) if algorithm.statistics else None
        moments = None if sums is None else InputMoments(
            sums.tokens, second_moment=sums.hessian.diagonal(), hessian=sums.hessian,
            input_gap=sums.input_gap, output_gap=sums.output_gap,
        )  # fmt: skip
        weights = {layer: block.weight(layer).float() for layer in layers}
        shared: dict[str, Any] = {}
        if any(grids[name].two_level for name in layers.values()):
            # runtimes fuse layers that read the same input, and have one global scale for them
            shared["global_scale"] = max(_global_scale(weights[layer], grids[name]) for layer, name in layers.items())
        solved = {}
        for number, (layer, name) in enumerate(layers.items()):
            if number % processes.size == processes.rank:
                problem = LayerProblem(name, weights[layer], grids[name], moments, shared)
                tensor = algorithm.quantize(problem, **settings)
                errors = {} if moments is None else layer_errors(weights[layer], tensor, moments)
                solved[layer] = (tensor, errors)
        for number, (layer, name) in enumerate(layers.items()):
            tensors[name], facts[name] = _shared(processes, solved.get(layer), number % processes.size, weights[layer])
            block.set_weight(layer, tensors[name].dequantize())
    return tensors, facts


def _shared(processes: Any, solution: Any, owner: int, like: Array) -> tuple[QTensor, dict[str, float]]:
    """The solution of one process on every process; arrays travel as numpy's, which knows all their types."""
    if processes.size == 1:
        return solution  # type: ignore[no-any-return]
    message = None
    if solution is not None:
        tensor, errors = solution
        arrays = {name: array.cpu().numpy() for name, array in tensor.tensors().items()}
        message = (tensor.grid.to_dict(), tensor.shape, tensor.block, arrays, errors)
    grid, shape, block, arrays, errors = processes.share(message, owner)
    torch = namespace(like)
    tensors = {name: torch.from_numpy(array).to(like.device) for name, array in arrays.items()}
    return QTensor.from_tensors(QuantizationGrid.from_dict(grid), shape, block, tensors), errors


def _global_scale(weight: Array, grid: QuantizationGrid) -> Array:
    block = grid.weight_block(tuple(weight.shape))
    low, high = BlockShape(tuple(weight.shape), block).extremes(weight)
    return qparams_from_min_max(low, high, grid, block).global_scale


def layer_errors(weight: Array, tensor: QTensor, moments: InputMoments) -> dict[str, float]:
    """Mean squared output error of a quantized weight and of plain rounding, as shares of the mean squared output.

    Where the float model's activations are known, the error is the distance to its output less what the unchanged
    weight would have: negative if the layer makes up for more than it loses.
    """
    low, high = BlockShape(tensor.shape, tensor.block).extremes(weight)
    rounded = fake_quantize(weight, qparams_from_min_max(low, high, tensor.grid, tensor.block))
    hessian, gap = moments.hessian, moments.output_gap
    if gap is None and moments.input_gap is not None:
        gap = weight @ moments.input_gap

    def error(change: Array) -> float:
        lost = float(((change @ hessian) * change).sum())
        return lost if gap is None else lost - 2 * float((change * gap).sum())

    signal = max(float(((weight @ hessian) * weight).sum()), 1e-30)
    return {"error": error(tensor.dequantize() - weight) / signal, "rounding_error": error(rounded - weight) / signal}
