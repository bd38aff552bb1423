# SPDX-License-Identifier: Apache-2.0
"""What a task is.

A member is a file with

- `MODEL`: the name of transformers' Auto class for models that do it, such as `"AutoModelForCausalLM"`;
- `loss(outputs, batch) -> (sum, count)`: the loss of a batch summed over whatever is learned, and over how much of it,
  both scalars on the device of the outputs. They are kept apart so that batches of one step weigh as much as what is
  learned in them: a step in several batches, or on several devices, has the gradient of one large batch;
- `METRIC`: a `Metric` class; its `BEST` says which of its numbers an evaluation is judged by, and which way;
- `ANSWERS`: names in a batch that are not given to the model; `("labels",)` if it says none. A task whose models
  compute the loss themselves gives them the labels: `ANSWERS = ()`;
- `AXIS`: optional, of tasks whose labels are numbers of classes: the axis of the logits that has a place for each;
- `prepare(batch, model) -> batch`: optional; makes of a batch of the data one that the model and the rest of this take;
- `faults(batch, model) -> list[str]`: optional; what is wrong with a batch for this model, before anything is trained.

A batch is a dict of tensors, or of lists of tensors where sizes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fewbit.tuning.unfit_samples import Unfit

NOTHING = -100
"""The label of a position at which nothing is learned."""

Batch = Mapping[str, Any]
Best = tuple[str, str]
"""A number's name, and `"min"` or `"max"`."""


class Metric:
    """Numbers about a model's answers, from sums that batches and processes add to.

    A subclass says in `update` what a batch adds, by `self.add(name=tensor)`, and in `result` what the sums come to.
    One that needs more than sums overrides `parts`, `merge` and `drawn` as well.

    >>> import torch
    >>> metric = Metric()
    >>> metric.add(right=torch.tensor(3), all=torch.tensor(4))
    >>> metric.merge([{"right": 1.0, "all": 4.0}, metric.parts()])
    >>> metric.sums
    {'right': 4.0, 'all': 8.0}
    """

    BEST: Best = ("loss", "min")

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}

    def update(self, outputs: Any, batch: Batch) -> None:
        """Take in one batch; tensors stay where they are, nothing waits for the device."""

    def result(self) -> dict[str, float]:
        """The numbers; the mean loss is always there and need not be among them."""
        return {}

    def add(self, **sums: Tensor) -> None:
        """Add to the sums, in double precision where the device has it."""
        for name, value in sums.items():
            value = value.detach()
            value = value.float() if value.device.type == "mps" else value.double()  # which has no doubles
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def parts(self) -> Any:
        """What this process has gathered, as plain values."""
        return {name: float(value) for name, value in self.sums.items()}

    def merge(self, parts: Iterable[Any]) -> None:
        """Become what all processes gathered together, this one included."""
        self.sums = {}
        for each in parts:
            for name, value in each.items():
                self.sums[name] = self.sums.get(name, 0.0) + value

    @classmethod
    def drawn(cls, parts: Sequence[Any], times: NDArray[Any]) -> dict[str, NDArray[Any]] | None:
        """The numbers of many draws of samples, by which their intervals are told; none where sums say it all.

        Args:
            parts: of each sample alone.
            times: `[draws, samples]`, how often each sample is in each draw.

        Returns:
            Of each number its values, `[draws]`.
        """
        return None


def logits_of(outputs: Any) -> Tensor:
    """The logits of a model's outputs: its `logits`, the first of a tuple, or the outputs themselves.

    >>> import torch
    >>> logits_of((torch.zeros(2, 3), None)).shape
    torch.Size([2, 3])
    """
    if isinstance(outputs, Tensor):
        return outputs
    if hasattr(outputs, "logits"):
        found: Tensor = outputs.logits
        return found
    first: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    return first


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross entropy of all positions that have a label, and how many there are.

    Args:
        logits: `[…, classes]`.
        labels: `[…]`, with `NOTHING` where nothing is learned.
    """
    flat, wanted = logits.flatten(0, -2), labels.flatten()
    with told_beyond(labels, logits.shape[-1]):
        total = functional.cross_entropy(flat.float(), wanted, ignore_index=NOTHING, reduction="sum")
    return total, (wanted != NOTHING).sum()


@contextmanager
def told_beyond(labels: Tensor, classes: int) -> Iterator[None]:
    """Within the block a label that the model has no output for is told as that.

    Nothing is looked at before PyTorch complains, which it does on a CPU: on a GPU asking would hold up every step.

    Args:
        labels: `[samples, …]`.
        classes: how many outputs there are.

    Raises:
        Unfit: in the place of what PyTorch raises.
    """
    try:
        yield
    except IndexError as error:
        found = beyond(labels, classes)
        if found is None:
            raise
        raise found from error


def beyond(labels: Tensor, classes: int) -> Unfit | None:
    """What is to be said of labels that a model has no output for; nothing if it has all of them."""
    wrong = (labels != NOTHING) & ((labels < 0) | (labels >= classes))
    if not wrong.any():
        return None
    return Unfit(
        f"a label is {int(labels[wrong][0])}; the model has {classes} outputs, 0 to {classes - 1}",
        rows=wrong.reshape(len(labels), -1).any(1).nonzero().flatten().tolist(),
        of=len(labels),
        expected=f"labels from 0 to {classes - 1}, and {NOTHING} for nothing to learn",
        try_="a model with an output for every class, or a look at the labels of these samples",
    )


def class_faults(labels: Tensor, classes: int | None, name: str = "labels") -> list[str]:
    """What is wrong with class numbers: outside of what there is, or nothing to learn at all."""
    if labels.is_floating_point():
        return [f"{name} are {labels.dtype}; class numbers are whole"]
    known = labels[labels != NOTHING]
    if known.numel() == 0:
        return [f"every one of the {labels.numel()} {name} is {NOTHING}: nothing is learned from it"]
    low, high = int(known.min()), int(known.max())
    if low < 0:
        return [f"{name} go down to {low}; class numbers start at 0, and {NOTHING} is for nothing to learn"]
    if classes is not None and high >= classes:
        return [f"{name} go up to {high}; the model has {classes} classes, 0 to {classes - 1}"]
    return []


def token_faults(batch: Batch, model: nn.Module) -> list[str]:
    """What is wrong with the tokens of a batch: ids that the model's table does not have."""
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor):
        return ["there are no input_ids"]
    found = []
    if ids.is_floating_point():
        found.append(f"input_ids are {ids.dtype}; ids are whole numbers")
    table = getattr(model, "get_input_embeddings", lambda: None)()
    size = getattr(table, "num_embeddings", None)
    if size is not None and ids.numel() and int(ids.max()) >= size:
        found.append(f"input_ids go up to {int(ids.max())}; the model's table has {size} rows: another tokenizer's?")
    if ids.numel() and int(ids.min()) < 0:
        found.append(f"input_ids go down to {int(ids.min())}; ids start at 0")
    return found


def classes_of(model: nn.Module) -> int | None:
    """How many classes a Hugging Face model tells apart; none if it does not say."""
    return getattr(getattr(model, "config", None), "num_labels", None)
