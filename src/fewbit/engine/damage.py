# SPDX-License-Identifier: Apache-2.0
"""What each layer of a compressed module does to its output, and how the error grows along the way.

While the original runs, every layer of the other model is given the original's input of that layer, and the two
outputs are held against each other: the *local error* is what rounding this one layer changes, activations and the
kernel that runs here included. What arrived at each layer while the compressed model ran, before, is held against what
arrives in the original: the *arriving error* is what all layers before it have done. The compressed model runs first
since some have their weights only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from fewbit.data.capturing.modes import evaluating
from fewbit.engine.layer_error import PairedLayer, first_float
from fewbit.engine.questions import Question

ITEMS = 16
"""Layers are ranked by so many items: their order is settled long before a perplexity is."""
_ROWS = 64
"""Positions of an item whose arriving values are kept until the original has run too."""


class Damage:
    """Looks on while two modules run, at the layers both have under the same name.

    Args:
        original: a module.
        compressed: another of the same build.
        layers: names of layers, of which those that are in both, and not the same object, are looked at.
    """

    def __init__(self, original: nn.Module, compressed: nn.Module, layers: Iterable[str]):
        ours, theirs = (dict(model.named_modules(remove_duplicate=False)) for model in (original, compressed))
        both = [name for name in dict.fromkeys(layers) if name in ours and name in theirs]
        self._compressed = compressed
        self._layers = [PairedLayer(name, ours[name], theirs[name]) for name in both if ours[name] is not theirs[name]]
        self._question: Question | None = None
        self._calls = 0
        self.items = 0

    @property
    def wants_more(self) -> bool:
        """Whether it looks on at the next item."""
        return any(layer.changed for layer in self._layers) and self.items < ITEMS

    @property
    def layers(self) -> list[PairedLayer]:
        """Those that were called, in the order of their first calls."""
        return sorted((each for each in self._layers if each.order is not None), key=lambda each: each.order or 0)

    @property
    def unreached(self) -> list[str]:
        """Those that are not the same in both, and that nothing called."""
        return [each.name for each in self._layers if each.order is None and each.changed]

    @contextmanager
    def on_compressed(self, question: Question) -> Iterator[None]:
        """Within the block the compressed model answers this one question."""
        self._question = question
        self.items += 1
        with ExitStack() as hooks:
            for layer in self._layers:
                layer.arrived.clear()
                hooks.callback(layer.theirs.register_forward_pre_hook(self._arrived(layer), with_kwargs=True).remove)
            yield

    @contextmanager
    def on_original(self) -> Iterator[None]:
        """Within the block the original answers the same question."""
        self._calls = 0
        with evaluating(self._compressed), ExitStack() as hooks:
            for layer in self._layers:
                hooks.callback(layer.ours.register_forward_hook(self._beside(layer), with_kwargs=True).remove)
            yield
        for layer in self._layers:
            layer.arrived.clear()

    def _arrived(self, layer: PairedLayer) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first_float((args, kwargs))
            layer.arrived.append(None if x is None else self._some(x))

        return hook

    def _beside(self, layer: PairedLayer) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            layer.order = self._calls if layer.order is None else layer.order
            self._calls += 1
            x = first_float((args, kwargs))
            self._compare_arrived(layer, x)
            if layer.changed and layer.fault is None:
                self._compare_outputs(layer, args, kwargs, first_float(out), x)

        return hook

    def _compare_arrived(self, layer: PairedLayer, x: Tensor | None) -> None:
        found = layer.arrived.pop(0) if layer.arrived else None
        wanted = None if x is None else self._some(x)
        if wanted is not None and found is not None and wanted.shape == found.shape:
            layer.arriving.add(wanted, found)

    def _compare_outputs(
        self, layer: PairedLayer, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: Tensor | None, x: Tensor | None
    ) -> None:
        try:
            given, rounded = layer.beside(args, kwargs)
        except Exception as error:  # a layer of another build fails in its own way, and the comparison goes on
            layer.fault = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            return
        found = first_float(given)
        if wanted is None or found is None or wanted.shape != found.shape:
            layer.fault = "its output has another shape"
            return
        layer.local.add(self._real(wanted), self._real(found))
        if x is not None and rounded is not None:
            layer.rounding.add(self._real(x), self._real(rounded))

    def _real(self, x: Tensor) -> Tensor:
        """An activation without padding, where its positions can be told."""
        assert self._question is not None
        real = self._question.real()
        if real is None or bool(real.all()):
            return x
        if x.shape[:2] == real.shape:
            return x[real.to(x.device)]
        return x[real.flatten().to(x.device)] if len(x) == real.numel() else x

    def _some(self, x: Tensor) -> Tensor | None:
        """A few positions of an activation; none where a router chose them, since it may choose others next time."""
        assert self._question is not None
        real = self._question.real()
        if real is not None and x.ndim == 2 and len(x) not in (len(real), real.numel()):
            return None
        kept = self._real(x)
        rows = kept.reshape(-1, kept.shape[-1])
        return rows[:: max(1, -(-len(rows) // _ROWS))].detach().clone()
