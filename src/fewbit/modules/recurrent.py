# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: they read their weights from a list kept beside the parameters, here made anew for each forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fewbit.modules.holding import Holding


class QuantizedRecurrent(Holding):
    """In front of LSTM, GRU and RNN."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: Any) -> None:
        """Torch fills the list when the module moves; there is nothing to keep."""

    def _init_flat_weights(self) -> None:
        pass

    def _update_flat_weights(self) -> None:
        pass

    def flatten_parameters(self) -> None:
        """Nothing to flatten: the float weights live for one forward only."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_flat_weights", "_flat_weight_refs")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._flat_weight_refs: list[Any] = []
