# SPDX-License-Identifier: Apache-2.0
"""Another head for other classes: everything of a model stays but the layer that answers, which starts anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from fewbit.errors import UsageError
from fewbit.modules.huggingface import is_pretrained
from fewbit.tuning import randomness
from fewbit.tuning.targets import linear_layers


def with_new_head(model: nn.Module, classes: Sequence[str], seed: int = 0) -> nn.Module:
    """A copy of a model that tells other classes apart.

    Args:
        model: of Hugging Face, whose configuration says how many classes there are; or any other, whose last linear
            layer is the head.
        classes: their names, in the order of their numbers.
        seed: of the new weights.

    Raises:
        UsageError: a model whose head is not known.

    >>> with_new_head(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), ["cat", "dog"])[1]
    Linear(in_features=8, out_features=2, bias=True)
    """
    with randomness.private(seed):
        return _rebuilt(model, classes) if is_pretrained(model) else _replaced(model, classes)


def _rebuilt(model: Any, classes: Sequence[str]) -> nn.Module:
    """A Hugging Face model of another configuration, with every weight of the old one that still fits."""
    config = copy.deepcopy(model.config)
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: number for number, name in enumerate(classes)}
    made: Any = type(model)(config).to(model.dtype).train(model.training)
    new, old = made.state_dict(), model.state_dict()
    fits = {name: tensor for name, tensor in old.items() if name in new and new[name].shape == tensor.shape}
    made.load_state_dict(fits, strict=False)
    made.name_or_path = model.name_or_path
    found: nn.Module = made.to(model.device)
    return found


def _replaced(model: nn.Module, classes: Sequence[str]) -> nn.Module:
    layers = list(linear_layers(model))
    old: Any = model.get_submodule(layers[-1]) if layers else None
    if type(old) is not nn.Linear or old is model:
        raise UsageError(
            f"the head of a {type(model).__name__} is not known",
            where="new_head",
            expected="a Hugging Face model, or one whose last layer is an nn.Linear",
            try_=f"a model for {len(classes)} classes, whose other layers have the weights of this one",
        )
    made = copy.deepcopy(model)
    head = nn.Linear(old.in_features, len(classes), old.bias is not None, old.weight.device, old.weight.dtype)
    outer, _, name = layers[-1].rpartition(".")
    setattr(made.get_submodule(outer), name, head)
    return made
