# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of many builds, for the tests of the eager backend. No file is read, no hub asked."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 4}
_UNTIED = {"tie_word_embeddings": False}
_EXPERTS = {**_GROUPED, **_UNTIED, "num_hidden_layers": 1, "num_experts_per_tok": 2}

_TRANSFORMERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaConfig", "LlamaForCausalLM", {**_GROUPED, **_UNTIED}),
    "qwen3": ("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {**_GROUPED, "tie_word_embeddings": True}),
    "gemma": ("gemma", "GemmaConfig", "GemmaForCausalLM", {**_GROUPED, "num_key_value_heads": 1}),
    "phi": ("phi", "PhiConfig", "PhiForCausalLM", {**_SIZES, **_UNTIED}),
    "phi3": ("phi3", "Phi3Config", "Phi3ForCausalLM", {**_GROUPED, **_UNTIED, "pad_token_id": 0}),
    "neox": ("gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", {**_SIZES, **_UNTIED}),
    "bert": ("bert", "BertConfig", "BertModel", _SIZES),
    "opt": (
        "opt", "OPTConfig", "OPTForCausalLM",
        {**_SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16, "do_layer_norm_before": True},
    ),
    "gpt2": (
        "gpt2", "GPT2Config", "GPT2LMHeadModel",
        {"n_embd": 16, "n_head": 4, "n_layer": 2, "vocab_size": 40, "n_positions": 32},
    ),
    "t5": (
        "t5", "T5Config", "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4, "vocab_size": 40},
    ),
    "mixtral": ("mixtral", "MixtralConfig", "MixtralForCausalLM", {**_EXPERTS, "num_local_experts": 4}),
    "qwen3_moe": (
        "qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 12, "decoder_sparse_step": 1},
    ),
    "gpt_oss": (
        "gpt_oss", "GptOssConfig", "GptOssForCausalLM",
        {**_EXPERTS, "num_local_experts": 4, "layer_types": ["full_attention"]},
    ),
    "llama4": (
        "llama4", "Llama4TextConfig", "Llama4ForCausalLM",
        {
            **_EXPERTS, "num_experts_per_tok": 1, "num_local_experts": 4, "intermediate_size_mlp": 24,
            "moe_layers": [0], "layer_types": ["full_attention"], "attention_chunk_size": 8, "no_rope_layers": [1],
        },
    ),
}  # fmt: skip


def transformer(name: str, **changes: Any) -> Any:
    """A tiny random model of one of transformers' architectures, norms and biases away from their initial values."""
    folder, config, model, fields = _TRANSFORMERS[name]
    configs = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    models = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    torch.manual_seed(0)
    return shaken(getattr(models, model)(getattr(configs, config)(**{**fields, **changes})))


def shaken(model: nn.Module) -> Any:
    """The model with every parameter filled with noise: ones and zeros would hide mistakes."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        spread = 0.3 if parameter.ndim < 2 else 0.15
        parameter.data = parameter.data + spread * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def tokens(batch: int = 2, length: int = 6) -> Tensor:
    """Random token ids."""
    return torch.randint(4, 40, (batch, length), generator=torch.Generator().manual_seed(2))


class ResNet(nn.Module):
    """A convolutional network with batch norms, a residual connection, a grouped convolution and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1, groups=4)
        self.bn2 = nn.BatchNorm2d(8)
        self.plain1 = nn.Conv2d(8, 6, 1)
        self.plain2 = nn.Conv2d(6, 4, 3)
        self.capped1 = nn.Conv2d(4, 6, 1)
        self.capped2 = nn.Conv2d(6, 4, 1)
        self.fc = nn.Linear(16, 5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.stem(x)))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        y = self.plain2(torch.max_pool2d(self.relu(self.plain1(self.relu(y))), 2))
        y = self.capped2(nn.functional.relu6(self.capped1(y)))
        return self.fc(y.relu().flatten(1))


class Tagger(nn.Module):
    """Words to vectors, a linear layer, a recurrent layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8)
        self.inner = nn.Linear(8, 10)
        self.lstm = nn.LSTM(10, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.inner(self.embed(ids)).relu())[0])


class Encoder(nn.Module):
    """Torch's own transformer encoder."""

    def __init__(self, *, norm_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.encoder(src, src_key_padding_mask=src_key_padding_mask)


def codes(weight: Tensor, stack: int = 0) -> Any:
    """A weight in fewbit's layout as eight-bit codes with one scale an output channel."""
    from fewbit.numerics.blocks import Blocks, QSchemeType
    from fewbit.numerics.dtypes import Dtype
    from fewbit.numerics.grid import Grid
    from fewbit.numerics.qparams import from_range
    from fewbit.numerics.qtensor import QTensor

    grid = Grid(Dtype.int8, QSchemeType.per_channel, axis=0)
    block = grid.weight_block(tuple(weight.shape), stack)
    parts = Blocks(tuple(weight.shape), block).split(weight.detach().float())
    axes = tuple(range(1, 2 * weight.ndim, 2))
    return QTensor.encode(weight.detach(), from_range(parts.amin(axes), parts.amax(axes), grid, block))


def rounded(weight: Tensor, out: int = 0, stack: tuple[int, ...] = ()) -> Tensor:
    """What `codes` stands for, by a formula of its own, in the weight's own layout.

    Args:
        weight: of any layout.
        out: its output axis.
        stack: its stack axes.
    """
    others = [axis for axis in range(weight.ndim) if axis not in (out, *stack)]
    scale = weight.detach().abs().amax(others, keepdim=True) / 127.5 if others else weight.detach().abs() / 127.5
    return (weight.detach() / scale).round().clamp(-128, 127) * scale
