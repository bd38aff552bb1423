# SPDX-License-Identifier: Apache-2.0
"""PyTorch: `nn.Module` objects, `FILE.py:FN` factories, Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.backends._base import Edit, Model
from fewbit.backends._headers import not_built
from fewbit.model_info import ModelInfo


class TorchBackend:
    """Reads modules, factories and Hugging Face folders."""

    name = "torch"
    suffixes = ("FILE.py:FN",)
    extra = "torch"
    target = "torch"
    edits: frozenset[type[Edit]] = frozenset()

    def matches(self, source: Any) -> bool:
        """A module, `FILE.py:FN`, or a folder with a `config.json` of transformers; torch is not imported."""
        from fewbit.backends.torch.huggingface import is_model_folder
        from fewbit.data.inputs.modules import is_module
        from fewbit.data.user_code import parse_reference

        if isinstance(source, str | Path):
            return parse_reference(str(source)) is not None or is_model_folder(Path(source))
        return is_module(source)

    def inspect(self, source: Any) -> ModelInfo:
        """The signature of `forward`, or the configuration of a folder; weights are not read."""
        if isinstance(source, str | Path):
            from fewbit.data.user_code import parse_reference

            if parse_reference(str(source)) is not None:
                from fewbit.backends.torch.factory import inspect_factory

                return inspect_factory(str(source))
            from fewbit.backends.torch.huggingface import inspect_folder

            return inspect_folder(Path(source))
        from fewbit.data.inputs.modules import module_info

        return module_info(source)

    def load(self, source: Any) -> Model:
        """Not built yet."""
        raise not_built("PyTorch", source)


BACKEND = TorchBackend()
