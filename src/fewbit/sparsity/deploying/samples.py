# SPDX-License-Identifier: Apache-2.0
"""A few real samples with what the model answers to them, by which whoever deploys it can tell that it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewbit.data.arrays.leading_axis import fixed_batch
from fewbit.data.capturing.modes import evaluating
from fewbit.data.dataset import Dataset
from fewbit.data.drawing import draw
from fewbit.data.signature import read_signature
from fewbit.sparsity.job import Job
from fewbit.tuning import randomness

INPUTS, OUTPUTS = "sample-inputs", "sample-outputs"
_COUNT, _TOKENS = 3, 32

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Sample:
    """One item of the data.

    Args:
        item: as the model is called with it.
        inputs: its arrays by name.
        outputs: the model's answers by name.
    """

    item: Any
    inputs: Arrays
    outputs: Arrays

    @property
    def is_bfloat16(self) -> bool:
        """Whether the model takes bfloat16, which arrays hold as float32."""
        args, kwargs = self.item if isinstance(self.item, tuple) else ((), self.item)
        return any(getattr(value, "dtype", None) is torch.bfloat16 for value in (*args, *kwargs.values()))


def items_of(model: Any, job: Job, count: int = _COUNT) -> list[Any]:
    """Some items of the calibration data, drawn at random by a fixed seed; none where there is no data."""
    if job.calibration is None:
        return []
    data = job.calibration if isinstance(job.calibration, Dataset) else Dataset(job.calibration)
    batch = fixed_batch(read_signature(model))
    with randomness.private(0):
        return list(islice(draw(data, count * batch, by_item=True).inputs(model, batch), count))


def samples_of(model: Any, items: Sequence[Any]) -> list[Sample]:
    """Items with the model's answers; of long texts the first tokens, since an answer is a vocabulary for each."""
    signature = read_signature(model)
    fixed = any(spec.shape and len(spec.shape) > 1 and isinstance(spec.shape[1], int) for spec in signature.inputs)
    short = [item if fixed else _shortened(item) for item in items]
    answer = answering(model)
    return [Sample(item, named(item, signature.names), answer(item)) for item in short]


def answering(model: Any) -> Any:
    """A function from an item to the model's answers by name."""
    if isinstance(model, nn.Module):
        return lambda item: _answers(model, item)
    import onnx_ir as ir

    from fewbit.backends.graph.sessions import session

    found: Any = ir.from_proto(model)
    ready = session(found)
    names = [each.name for each in ready.get_outputs()]
    return lambda item: {name: np.asarray(value) for name, value in zip(names, ready.run(None, dict(item)))}


def place_of(model: nn.Module) -> torch.device:
    """The device that a module is on; one of codes alone has no parameters."""
    return next((each.device for each in (*model.parameters(), *model.buffers())), torch.device("cpu"))


@contextmanager
def full_precision(place: torch.device) -> Iterator[None]:
    """Products of float32 as such: for convolutions a GPU leaves out half of the digits, if it is let, and what was
    written would be told from the model by that."""
    if place.type != "cuda":
        yield
        return
    found, name, value = _switches()
    kinds = [each for each in found if getattr(each, name) != value]  # setting what is set leaves a trace
    before = [getattr(each, name) for each in kinds]
    try:
        for each in kinds:
            setattr(each, name, value)
        yield
    finally:
        for each, setting in zip(kinds, before):
            setattr(each, name, setting)


def _switches() -> tuple[list[Any], str, Any]:
    """Where torch keeps how exact products are: switches that everybody knows, and since 2.9 others, which make the
    first ones fail once somebody has set them apart."""
    cudnn: Any = torch.backends.cudnn
    products = torch.backends.cuda.matmul
    try:
        if cudnn.allow_tf32 in (True, False) and products.allow_tf32 in (True, False):
            return [products, cudnn], "allow_tf32", False
    except RuntimeError:
        pass
    return [products, cudnn.conv, cudnn.rnn], "fp32_precision", "ieee"


def named(item: Any, names: Sequence[str]) -> Arrays:
    """The arrays of an item by name; what is no array or number is left out."""
    args, kwargs = item if isinstance(item, tuple) else ((), item)
    values = {**dict(zip(names, args)), **kwargs}
    return {name: found for name, value in values.items() if (found := _array(value)) is not None}


def flat(outputs: Any) -> dict[str, Tensor]:
    """The tensors of a module's outputs by name; what is kept for a next call, such as a cache, is none of them."""
    if isinstance(outputs, Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items() if isinstance(value, Tensor)}
    if isinstance(outputs, tuple | list):
        return {f"output_{number}": value for number, value in enumerate(outputs) if isinstance(value, Tensor)}
    return {}


def write_samples(folder: Path, samples: Sequence[Sample]) -> None:
    """`sample-inputs/000.npz` and so on, and what belongs to them in `sample-outputs`."""
    for name, each in ((INPUTS, [s.inputs for s in samples]), (OUTPUTS, [s.outputs for s in samples])):
        if samples:
            (folder / name).mkdir()
        for number, arrays in enumerate(each):
            content: dict[str, Any] = dict(arrays)
            np.savez(folder / name / f"{number:03}.npz", **content)


def _shortened(item: Any) -> Any:
    """An item of token ids with the first of them alone, in everything that has one value a token."""
    args, kwargs = item if isinstance(item, tuple) else ((), item)
    ids = kwargs.get("input_ids")
    if ids is None or ids.ndim != 2 or ids.shape[1] <= _TOKENS:
        return item
    cut = {name: value[:, :_TOKENS] if getattr(value, "shape", ())[:2] == ids.shape else value
           for name, value in kwargs.items()}  # fmt: skip
    return (args, cut) if isinstance(item, tuple) else cut


def _answers(model: nn.Module, item: Any) -> Arrays:
    args, kwargs = item
    place = place_of(model)
    moved = [value.to(place) if isinstance(value, Tensor) else value for value in args]
    with evaluating(model), full_precision(place):
        outputs = model(*moved, **{n: v.to(place) if isinstance(v, Tensor) else v for n, v in kwargs.items()})
    return {name: found for name, value in flat(outputs).items() if (found := _array(value)) is not None}


def _array(value: Any) -> NDArray[Any] | None:
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()
    found = np.asarray(value)
    return found if found.dtype.kind in "biufc" else None
