# SPDX-License-Identifier: Apache-2.0
"""Llamas of random weights for measurements of time: what they have learned makes no difference there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuning_loader import WORDS, WORK, make_tokenizer

SIZES = {
    "small": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 8},
    "135m": {  # SmolLM2's shape
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
}  # fmt: skip
VOCABULARY = {"small": 8192, "135m": 49152}


def make(size: str) -> Any:
    """A Llama, the same each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    assert VOCABULARY[size] > WORDS  # of the rows it is to read
    return LlamaForCausalLM(LlamaConfig(**SIZES[size], vocab_size=VOCABULARY[size], tie_word_embeddings=True))


def make_folder(size: str) -> Path:
    """The same with a tokenizer, as Hugging Face writes it."""
    folder = WORK / f"llama-{size}"
    if not (folder / "model.safetensors").exists():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(make_tokenizer()).save_pretrained(folder)
        make(size).save_pretrained(folder)
    return folder
