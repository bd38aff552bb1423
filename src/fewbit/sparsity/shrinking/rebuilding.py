# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face configuration for a model that was cut, found by trying.

Which fields say the width of a layer or the number of heads differs from one architecture to the next. Those equal to
a size that changed are tried, the fewest first, until the library builds a model of the very shapes from it; its
numbers are taken over, and the answers decide whether it is the right one. So what was cut can be saved and loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import combinations, islice
from typing import Any

import torch
from torch import nn

from fewbit.modules.huggingface import quiet
from fewbit.sparsity.shrinking.fitting import Sizes

Field = tuple[tuple[str, ...], int]
"""Where a number stands, from the outermost configuration inwards, and what it shall be."""

_Shapes = dict[str, tuple[int, ...]]
_HEAD = "head_dim"  # read by most attention of the library, whether a configuration has it or not
_TRIES = 256
_NUMBERS = (int, float, bool, str, tuple, list, type(None))


def rebuilt(model: Any, sizes: Sequence[Sizes], head: int | None) -> Iterator[tuple[Any, nn.Module]]:
    """Configurations from which the library builds a model of the shapes this one has, each with that model, empty.

    Args:
        model: a Hugging Face model that was cut.
        sizes: those that changed.
        head: the width of a head, to be said where a configuration can say it but does not.
    """
    wanted, before = _shapes(model), _shapes(_built(model, ()))
    helps: dict[Field, bool] = {}
    for more in range(3):  # numbers that are such a size; fields that say nothing too; multiples too
        fields = _fields(model.config, sizes, head, unsaid=more > 0, far=more > 1)
        helps |= {each: _may_help(model, each, before, wanted) for each in fields if each not in helps}
        for chosen in islice(_sets([each for each in fields if helps[each]]), _TRIES):
            made = _built(model, chosen)
            if made is not None and _shapes(made) == wanted:
                yield made.config, made


def take_over(model: Any, config: Any, made: nn.Module) -> None:
    """Let a model have the configuration, and its modules the numbers, of one that was built from it."""
    others = dict(made.named_modules())
    configs = {id(old): new for old, new in zip(_configs(model.config), _configs(config), strict=True)}
    for name, module in model.named_modules():
        other = others.get(name)
        for attribute, value in list(vars(module).items()):
            if id(value) in configs:
                setattr(module, attribute, configs[id(value)])
            elif other is not None and not attribute.startswith("_") and isinstance(value, _NUMBERS):
                new = vars(other).get(attribute, value)
                if attribute != "training" and isinstance(new, _NUMBERS) and new != value:
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
            setattr(part, path[-1], value)
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
            elif unsaid and value is None and not name.endswith("_id"):
                changed = {width * each.after // each.before for each in sizes for width in each.widths}
                found |= {((*path, name), size): True for size in changed}
        if head is not None and getattr(part, _HEAD, None) is None and hasattr(part, "hidden_size"):
            found[(*path, _HEAD), head] = False
    return sorted(found, key=lambda field: (found[field], field))


def _sets(fields: Sequence[Field]) -> Iterator[tuple[Field, ...]]:
    sets = (each for count in range(len(fields) + 1) for each in combinations(fields, count))
    return (each for each in sets if len({path for path, _ in each}) == len(each))


def _parts(config: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, config
    for name, value in vars(config).items():
        if isinstance(value, _config_class()):
            yield from _parts(value, (*path, name))


def _configs(config: Any) -> list[Any]:
    return [part for _, part in _parts(config, ())]


def _config_class() -> type:
    from transformers import PretrainedConfig

    return PretrainedConfig
