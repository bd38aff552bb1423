# SPDX-License-Identifier: Apache-2.0
"""`load`: a checkpoint as a PyTorch model, quantized weights packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.api.options import refuse_later
from fewbit.checkpoints._open import open_weights
from fewbit.errors import UsageError


def load(path: str | Path, *, factory: Any = None, device: str = "cpu", freeze: bool = True) -> Any:
    """The PyTorch model of a checkpoint: a folder that fewbit wrote, compressed-tensors, GPTQ, AWQ, FP8 or GGUF.

    Linear layers keep their packed integers and decode them when they compute; embeddings and others are float.

    Args:
        path: the folder or `.gguf` file.
        factory: builds the model, for a file that holds only weights.
        device: where the model computes.
        freeze: choose the fastest kernel for each layer; `False` leaves layers that can be changed.
    """
    if factory is not None:
        raise refuse_later("factory", factory, "load", "models are built from config.json")
    source = Path(path)
    if not source.exists():
        raise UsageError(
            f"there is no {source}", code="model-missing", expected="a folder or a .gguf file", hint="check the path"
        )
    weights = open_weights(source)
    loaders = [backend for backend in registry.members("backends").values() if hasattr(backend, "load_checkpoint")]
    return loaders[0].load_checkpoint(weights, device=device, freeze=freeze)
