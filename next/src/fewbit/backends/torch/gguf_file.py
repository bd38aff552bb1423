# SPDX-License-Identifier: Apache-2.0
"""What a GGUF file says of its model; its tokenizer becomes a folder, which is what the data layer reads."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from math import prod
from pathlib import Path

from fewbit.checkpoints._gguf.weights import GgufWeights
from fewbit.errors import require
from fewbit.model_info import ModelInfo, TensorInfo


def inspect_gguf(path: Path) -> ModelInfo:
    """Read the header of a file.

    Raises:
        ModelError: it is damaged, or of an architecture that is not known.
    """
    weights = GgufWeights(path)
    embedding = next((name for name in weights if name.endswith(("embed_tokens.weight", "wte.weight"))), None)
    config = weights.config()
    types = sorted({weights.headers[name]["type"] for name in weights if weights.quantized(name)})
    facts = {"tensors": len(weights), "parameters": sum(prod(weights.shape(name)) for name in weights)}
    facts |= {key: config[key] for key in ("num_hidden_layers", "hidden_size", "model_type") if key in config}
    if "max_position_embeddings" in config:
        facts["max_positions"] = config["max_position_embeddings"]
    return ModelInfo(
        source=str(path),
        kind=(config.get("architectures") or [f"{weights.kind.name} in GGUF"])[0],
        backend="torch",
        size=path.stat().st_size,
        inputs=(
            TensorInfo("input_ids", "int64", ("batch", "sequence")),
            TensorInfo("attention_mask", "int64", ("batch", "sequence"), required=False),
        ),
        task="text-generation",
        tokenizer=_tokenizer_folder(path, path.stat().st_mtime_ns),
        quantized=f"GGUF {', '.join(types)}" if types else None,
        vocabulary=None if embedding is None else weights.shape(embedding)[0],
        takes_tensors=True,
        takes_objects=True,
        facts=facts,
    )


@lru_cache(maxsize=4)
def _tokenizer_folder(path: Path, modified: int) -> str | None:
    """The tokenizer of a file in a temporary folder; `None` if it has none that transformers knows."""
    transformers = require("transformers", extra="hf", purpose="GGUF files")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError, ImportError, OSError):
        return None
    folder = tempfile.mkdtemp(prefix="fewbit-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer.save_pretrained(folder)
    return folder
