# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face configuration for a model that was cut, found by trying.

Which fields say the width of a layer or the number of heads differs from one architecture to the next. Those equal to
a size that changed are tried, the fewest first, until the library builds a model of the very shapes from it; its
numbers are taken over, and the answers decide whether it is the right one. So what was cut can be saved and loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import combinations, islice, product
from typing import Any

import torch
from torch import nn

from fewbit.modules.huggingface import quiet
from fewbit.sparsity.shrinking.fitting import Sizes

Field = tuple[tuple[str, ...], int | tuple[int, ...]]
"""Where a number, or a list of them, stands, from the outermost configuration inwards, and what it shall be."""

_Shapes = dict[str, tuple[int, ...]]
_HEAD = "head_dim"  # read by most attention of the library, whether a configuration has it or not
_TRIES = 128
_NUMBERS = (int, float, bool, str, tuple, list, type(None))


def rebuilt(model: Any, sizes: Sequence[Sizes], head: int | None) -> Iterator[nn.Module]:
    """Empty models of the shapes this one has, that the library builds from a configuration.

    Args:
        model: a Hugging Face model that was cut.
        sizes: those that changed.
        head: the width of a head, to be said where a configuration can say it but does not.
    """
    wanted, before = _shapes(model), _shapes(_built(model, ()))
    helps: dict[Field, bool] = {}
    for more in range(3):  # numbers that are such a size; fields that say nothing too; multiples too
        fields = _fields(model.config, sizes, head, unsaid=more > 0, far=more > 1)
        untried = [each for each in fields if each not in helps][:_TRIES]
        helps |= {each: _may_help(model, each, before, wanted) for each in untried}
        for chosen in islice(_sets([each for each in fields if helps.get(each)]), _TRIES):
            made = _built(model, chosen)
            if made is not None and _shapes(made) == wanted:
                yield made


def take_over(model: nn.Module, made: nn.Module) -> None:
    """Let the modules of a model have the numbers and configurations of one that was built from a configuration."""
    others, config = dict(made.named_modules()), _config_class()
    for name, module in model.named_modules():
        other = vars(others[name]) if name in others else {}
        for attribute, value in list(vars(module).items()):
            new = other.get(attribute, value)
            if attribute.startswith("_") or attribute == "training" or not isinstance(new, (*_NUMBERS, config)):
                continue
            if isinstance(value, config) or (isinstance(value, _NUMBERS) and new != value):
                setattr(module, attribute, new)


def _built(model: Any, fields: Sequence[Field]) -> Any:
    """An empty model of another configuration; none where the library builds none from it."""
    import transformers

    config = deepcopy(model.config)
    try:
        for path, value in fields:
            part = config
            for name in path[:-1]:
                part = getattr(part, name)
            setattr(part, path[-1], list(value) if isinstance(value, tuple) else value)
        with quiet(transformers), torch.device("meta"):
            return type(model)(config)
    except Exception:  # a configuration that contradicts itself, whatever the library raises then
        return None


def _may_help(model: Any, field: Field, before: _Shapes, wanted: _Shapes) -> bool:
    """Whether a field alone changes shapes that are to change, and no others; what fails alone may do with others."""
    made = _built(model, [field])
    if made is None or field[0][-1] == _HEAD:
        return True
    found = _shapes(made)
    changed = {name for name in found.keys() | before.keys() if found.get(name) != before.get(name)}
    return bool(changed) and all(wanted[name] != before.get(name) for name in changed & wanted.keys())


def _shapes(model: nn.Module) -> _Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _fields(config: Any, sizes: Sequence[Sizes], head: int | None, *, unsaid: bool, far: bool) -> list[Field]:
    """Every whole number of a configuration that may be a size that changed, for each new size it may have.

    Args:
        config: the configuration.
        sizes: those that changed.
        head: the width of a head.
        unsaid: whether a field that leaves it to the library may have to say it now.
        far: whether multiples count.
    """
    found: dict[Field, bool] = {}
    for path, part in _parts(config, ()):
        for name, value in vars(part).items():
            if name.startswith("_"):
                continue
            if type(value) is int:
                new = {each.new(value, far=far) for each in sizes} - {None, value}
                found |= {((*path, name), size): False for size in new if size is not None}
            elif isinstance(value, list) and value and all(type(each) is int for each in value):
                known: dict[int, int] = {}
                for size, each in product(sizes, value):
                    became = size.new(each, far=far)
                    known |= {each: became} if became is not None else {}
                found |= (
                    {((*path, name), tuple(known[n] if n in known else int(n) for n in value)): False} if known else {}
                )
            elif unsaid and value is None and not name.endswith("_id"):
                changed = {width * each.after // each.before for each in sizes for width in each.widths}
                found |= {((*path, name), size): True for size in changed}
        if head is not None and getattr(part, _HEAD, None) is None and hasattr(part, "hidden_size"):
            found[(*path, _HEAD), head] = False
    return sorted(found, key=lambda field: (found[field], str(field)))


def _sets(fields: Sequence[Field]) -> Iterator[tuple[Field, ...]]:
    sets = (each for count in range(len(fields) + 1) for each in combinations(fields, count))
    return (each for each in sets if len({path for path, _ in each}) == len(each))


def _parts(config: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, config
    for name, value in vars(config).items():
        if isinstance(value, _config_class()):
            yield from _parts(value, (*path, name))


def _config_class() -> type:
    from transformers import PretrainedConfig

    return PretrainedConfig
