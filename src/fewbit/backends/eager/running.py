# SPDX-License-Identifier: Apache-2.0
"""A run over items with watchers: hooks on the tensors' own device, nothing kept from one item to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from fewbit.backends.eager.caches import watched
from fewbit.backends.eager.calling import Item, call
from fewbit.backends.eager.catalogue import Catalogue, Layer
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.padding import Positions, masks_of
from fewbit.backends.eager.showing import Reader, Shown
from fewbit.errors import UsageError
from fewbit.model.ops import CACHE
from fewbit.model.points import Point, Role
from fewbit.model.watch import PRODUCTS, TAPS, Watch
from fewbit.modules.coded import first_argument


class Run:
    """One pass over items.

    Args:
        model: the model.
        found: its catalogue.
        watch: who is told what about which activation.
        note: takes a line about a layer, once.
    """

    def __init__(
        self, model: nn.Module, found: Catalogue, watch: Mapping[Point, Watch], note: Callable[[str, str], None]
    ):
        self._model = model
        self._cache = {point: asked for point, asked in watch.items() if point.op is CACHE}
        self._watch = [(p, _layer(found, p), asked) for p, asked in watch.items() if p not in self._cache]
        self._note = note
        self._positions = Positions([])
        self._last: dict[Role, Shown] = {}
        self._item = 0
        self._reached: set[int] = set()  # by `id`: a point takes long to hash
        self._failure: BaseException | None = None

    def over(self, items: Iterable[Item]) -> int:
        """Run the model and return how many items there were."""
        count = 0
        turned = any(getattr(module, "batch_first", True) is False for module in self._model.modules())
        handles = [self._hook(*entry) for entry in self._watch]
        try:
            with guest(self._model), watched(self._model, dict.fromkeys(self._cache, self._show_cache)):
                for self._item, item in enumerate(items):
                    self._positions = Positions(masks_of(self._model, item), position_first=turned)
                    self._last.clear()
                    self._call((item[0], {**item[1], "use_cache": True}) if self._cache else item)
                    count += 1
        finally:
            for handle in handles:
                handle.remove()
            self._last.clear()
        for point in (*(point for point, _, _ in self._watch), *self._cache):
            if count and id(point) not in self._reached:
                self._note(point.layer, f"no item reached it ({count} were run)")
        return count

    def _call(self, item: Item) -> None:
        try:
            call(self._model, item, self._item)
        except Exception:
            if self._failure is not None:  # a watcher's own error is not the model's
                raise self._failure from None
            raise

    def _hook(self, point: Point, layer: Layer, watch: Watch) -> Any:
        if point.role is Role.input:

            def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                size = kwargs.get("output_size", args[1] if len(args) > 1 else None)  # of a transposed convolution
                for x in inputs_of(layer, args, kwargs):
                    self._show(point, watch, x, layer.features(), Reader(layer, size))

            return layer.module.register_forward_pre_hook(before, with_kwargs=True)

        def after(module: nn.Module, args: Any, out: Any) -> None:
            first = out[0] if isinstance(out, tuple) and not _is_packed(out) else out
            self._show(point, watch, first.data if _is_packed(first) else first, layer.features())

        return layer.module.register_forward_hook(after)

    def _show_cache(self, point: Point, states: Tensor) -> None:
        self._show(point, self._cache[point], states, -1)

    def _show(self, point: Point, watch: Watch, x: Tensor, features: int, reader: Reader | None = None) -> None:
        self._reached.add(id(point))
        shown = self._last.get(point.role)
        if shown is None or not shown.shows(x, features):
            shown = self._last[point.role] = Shown(x, features, self._positions)
        if not shown.matched:
            self._note(point.layer, "its positions do not follow the attention mask: padding is counted in")
        if shown.empty:
            return
        try:
            found = shown.tell(watch.needs, watch.sample, reader)
            if {TAPS, PRODUCTS} & (watch.needs - found.keys()):
                self._note(point.layer, "what its kernel meets is not known: its class has a forward of its own")
            watch.take(found, self._item)
        except BaseException as error:
            self._failure = error
            raise


def inputs_of(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What a layer reads: its first argument; attention reads query, key and value, each tensor once."""
    names = ("query", "key", "value") if isinstance(layer.module, nn.MultiheadAttention) else ("",)
    given = list(args[: len(names)])
    given += [kwargs[name] for name in names[len(given) :] if name in kwargs]
    if not given and kwargs:
        first = first_argument(type(layer.module))
        given = [kwargs[first] if first in kwargs else next(iter(kwargs.values()))]
    once = {id(x): x.data if _is_packed(x) else x for x in given}
    return [x for x in once.values() if isinstance(x, Tensor)]


def _is_packed(x: Any) -> bool:
    return isinstance(x, nn.utils.rnn.PackedSequence)


def _layer(found: Catalogue, point: Point) -> Layer:
    if point.role not in (Role.input, Role.output) or point.layer not in found.layers:
        raise UsageError(f"{point.name} cannot be watched", expected="an input or an output of a layer of this model")
    return found.layers[point.layer]
