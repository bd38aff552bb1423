# SPDX-License-Identifier: Apache-2.0
"""How long a model takes beside the dense one, in turns in one process, and what zeros have to do with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.data.capturing.modes import modes_kept
from fewbit.modules.quantized import is_quantized
from fewbit.sparsity.semi_structured import is_two_of_four
from fewbit.sparsity.zeros import zeros_of

_WORTH_SAYING = 0.05
"""Of all weights: codes of which a few happen to be zero are not a sparse model."""
_WARM, _FEWEST, _LEAST, _MOST, _SECONDS = 2, 3, 7, 51, 4.0


def latency(dense: Any, model: Any, item: Any, *, seconds: float = _SECONDS) -> dict[str, Any]:
    """Time two models on the same item, one after the other, in turns.

    What a machine does beside slows both down alike, so the ratio of neighbours says more than two times apart. Modules
    run where they are, in PyTorch; graphs on the CPU, in ONNX Runtime.

    Args:
        dense: the model it was made from.
        model: of the same kind.
        item: what both are called with, as `Dataset.inputs` gives it.
        seconds: about how long to go on; seven turns at least, three of models that take longer than that.

    Returns:
        `float_ms` and `result_ms`: the median and quartiles of each. `ratio`: of the result's time to the float's, the
        median and quartiles over the turns; below 1 the result is faster. `turns`, `runtime`, `threads`.
    """
    with ExitStack() as stack:
        for each in (dense, model):
            if isinstance(each, nn.Module):
                stack.enter_context(modes_kept(each, evaluate=True))
        pairs = _in_turns(_call(dense, item), _call(model, item), seconds)
    return {
        "float_ms": _spread([1e3 * a for a, _ in pairs]),
        "result_ms": _spread([1e3 * b for _, b in pairs]),
        "ratio": _spread([b / a for a, b in pairs]),
        "turns": len(pairs),
        "runtime": "PyTorch" if isinstance(model, nn.Module) else "ONNX Runtime",
        "threads": torch.get_num_threads(),
    }


def _in_turns(first: Callable[[], Any], second: Callable[[], Any], seconds: float) -> list[tuple[float, float]]:
    """The times of two calls, turn by turn."""
    once = _timed(first) + _timed(second)
    least = _LEAST if once * _LEAST < 4 * seconds else _FEWEST  # a large model takes long enough to be timed thrice
    for _ in range(_WARM if least == _LEAST else 0):
        first()
        second()
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < least or (time.perf_counter() < end and len(pairs) < _MOST):
        if len(pairs) % 2:  # whoever comes second finds a warmer machine
            after = _timed(second)
            pairs.append((_timed(first), after))
        else:
            before = _timed(first)
            pairs.append((before, _timed(second)))
    return pairs


def words(model: Any, found: dict[str, Any] | None, *, unchanged: bool = False) -> list[str]:
    """What may be said of a model's speed, and what its zeros do not do for it, a sentence each.

    Args:
        model: the result.
        found: what `latency` said; none if nothing was timed.
        unchanged: whether it is the float model, byte for byte, so that there is nothing to time.
    """
    said = ["It is the float model, byte for byte, and as fast: nothing was timed."] if unchanged else []
    if found is not None:
        said.append(verdict(found))
    counted = zeros_of(model)
    zeros, elements = sum(each.zeros for each in counted), sum(each.elements for each in counted)
    if zeros >= _WORTH_SAYING * elements > 0:
        said.append(
            f"{zeros / elements:.1%} of the weights are zero. Dense kernels compute with them as with any number: they "
            "make the file smaller, and the model no faster."
        )
    fours, matrices = _fours(model)
    if fours:
        said.append(
            f"{fours} of {matrices} linear layers are 2:4. That is faster on NVIDIA GPUs from Ampere on alone, in half "
            "precision: by fewbit.sparsity.semi_structured.to_semi_structured(model), or in TensorRT."
        )
    if _has_codes(model) and not unchanged:
        faster = found is not None and found["ratio"]["high"] < 1
        here = "" if faster else "; a small model, or a runtime that computes in floats all the same, gains nothing"
        said.append(f"Codes of few bits are what makes a model faster, where the machine computes with them{here}.")
    return said


def verdict(found: dict[str, Any]) -> str:
    """What `latency` found, in a sentence."""
    ratio = found["ratio"]
    how = (
        f"{1 / ratio['median']:.2f} times as fast as the float model"
        if ratio["high"] < 1
        else f"slower than the float model by {ratio['median'] - 1:.0%}"
        if ratio["low"] > 1
        else "as fast as the float model, as far as could be seen"
    )
    return (
        f"In {found['runtime']} here it is {how}: its time is {ratio['median']:.2f} of the float's "
        f"(quartiles {ratio['low']:.2f} to {ratio['high']:.2f}, {found['turns']} turns)."
    )


def _call(model: Any, item: Any) -> Callable[[], Any]:
    if not isinstance(model, nn.Module):
        import onnx_ir as ir

        from fewbit.backends.graph.sessions import session

        found: Any = ir.from_proto(model)
        ready = session(found)
        return lambda: ready.run(None, dict(item))
    place = next((each.device for each in model.parameters()), torch.device("cpu"))
    args = [value.to(place) if isinstance(value, Tensor) else value for value in item[0]]
    kwargs = {name: value.to(place) if isinstance(value, Tensor) else value for name, value in item[1].items()}

    def run() -> None:
        with torch.inference_mode():
            model(*args, **kwargs)
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    return run


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, _, high = quantiles(values, n=4, method="inclusive")
    return {"median": median(values), "low": low, "high": high}


def _fours(model: Any) -> tuple[int, int]:
    """How many linear layers of floats have two zeros in every four weights, of how many."""
    if not isinstance(model, nn.Module):
        return 0, 0
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and not is_quantized(layer)]
    return sum(is_two_of_four(layer.weight.detach()) for layer in layers), len(layers)


def _has_codes(model: Any) -> bool:
    if isinstance(model, nn.Module):
        return any(map(is_quantized, model.modules()))
    from fewbit.backends.graph.opening import is_integer_op

    return any(is_integer_op(node.op_type) for node in model.graph.node)
