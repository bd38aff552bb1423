# SPDX-License-Identifier: Apache-2.0
"""Small PyTorch modules of many builds, with random parameters; nothing is downloaded."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_UNTIED = {**_SIZES, "tie_word_embeddings": False}
_GROUPED = {**_UNTIED, "num_key_value_heads": 2, "head_dim": 4}
_EXPERTS = {**_GROUPED, "num_hidden_layers": 1, "num_experts_per_tok": 2}

_T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4, "vocab_size": 40}
_GPT2 = {
    "n_embd": 16, "n_head": 4, "n_layer": 2, "vocab_size": 40, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_OPT = {**_SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16, "do_layer_norm_before": True}
_GPT_OSS = {**_EXPERTS, "num_local_experts": 4, "layer_types": ["full_attention"]}
_LLAMA4 = {
    **_EXPERTS, "num_experts_per_tok": 1, "num_local_experts": 4, "intermediate_size_mlp": 24, "moe_layers": [0],
    "layer_types": ["full_attention"], "attention_chunk_size": 8, "no_rope_layers": [1],
}  # fmt: skip

# Folder of transformers, class, configuration.
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", _GROUPED),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {**_GROUPED, "tie_word_embeddings": True}),
    "gemma": ("gemma", "GemmaForCausalLM", {**_GROUPED, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "phi": ("phi", "PhiForCausalLM", _UNTIED),
    "phi3": ("phi3", "Phi3ForCausalLM", _GROUPED),
    "neox": ("gpt_neox", "GPTNeoXForCausalLM", _UNTIED),
    "bert": ("bert", "BertModel", _SIZES),
    "opt": ("opt", "OPTForCausalLM", _OPT),
    "gpt2": ("gpt2", "GPT2LMHeadModel", _GPT2),
    "t5": ("t5", "T5ForConditionalGeneration", _T5),
    "mixtral": ("mixtral", "MixtralForCausalLM", {**_EXPERTS, "num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 12}),
    "gpt_oss": ("gpt_oss", "GptOssForCausalLM", _GPT_OSS),
    "llama4": ("llama4", "Llama4ForCausalLM", _LLAMA4),
    "mistral": ("mistral", "MistralForCausalLM", {**_GROUPED, "sliding_window": 4}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", _GROUPED),
    "bloom": ("bloom", "BloomForCausalLM", {**_UNTIED, "n_head": 4, "n_layer": 2}),
    "falcon": ("falcon", "FalconForCausalLM", {**_UNTIED, "new_decoder_architecture": True, "num_kv_heads": 2}),
}


def decoder(name: str, **changes: Any) -> Any:
    """A tiny model of one of transformers' architectures."""
    folder, model, fields = DECODERS[name]
    prefix = "Llama4Text" if name == "llama4" else model.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    prefix = prefix.removesuffix("ForConditionalGeneration").removesuffix("Model")
    configs = importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")
    models = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    torch.manual_seed(0)
    return filled(getattr(models, model)(getattr(configs, f"{prefix}Config")(**{**fields, **changes})))


def filled(model: nn.Module) -> Any:
    """The model with noise on every parameter: ones and zeros would hide mistakes."""
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
    return torch.randint(4, 40, (batch, length), generator=torch.Generator().manual_seed(batch * 100 + length))


def inputs_of(name: str, batch: int = 2, length: int = 6) -> dict[str, Tensor]:
    """Arguments for a model of `DECODERS`."""
    ids = tokens(batch, length)
    return {"input_ids": ids} | ({"decoder_input_ids": ids.flip(1)} if name == "t5" else {})


class Convolutions(nn.Module):
    """Batch norms, a residual sum in place, a grouped convolution, ReLU6, positions flattened before the head."""

    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.bn1 = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 8, 3, padding=1, groups=4), nn.BatchNorm2d(8)
        self.plain1, self.plain2 = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 4, 3)
        self.capped1, self.capped2 = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 4, 1)
        self.fc = nn.Linear(16, 5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.stem(x)))
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        y = self.plain2(torch.max_pool2d(self.relu(self.plain1(self.relu(y))), 2))
        y = self.capped2(functional.relu6(self.capped1(y)))
        return self.fc(y.relu().flatten(1))


class BasicBlock(nn.Module):
    """Of ResNet, with a convolution on the shortcut."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


class Residual(nn.Module):
    """ResNet."""

    shape = (3, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(BasicBlock(8, 12), BasicBlock(8, 6))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


class Mobile(nn.Module):
    """An inverted residual with a depthwise convolution and squeeze-and-excite."""

    shape = (3, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.wide, self.deep = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.thin = nn.Conv2d(16, 8, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.BatchNorm2d(8)])
        self.less, self.more = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = functional.relu6(self.norms[0](self.wide(x)))
        y = functional.relu6(self.norms[1](self.deep(y)))
        gate = torch.sigmoid(self.more(torch.relu(self.less(functional.adaptive_avg_pool2d(y, 1)))))
        x = x + self.norms[2](self.thin(y * gate))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Dense(nn.Module):
    """Concatenations as in DenseNet, norms over all that came before, a transposed convolution, a group norm."""

    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.BatchNorm2d(10)])
        self.convs = nn.ModuleList([nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(10, 4, 3, padding=1)])
        self.up, self.scale = nn.ConvTranspose2d(14, 8, 2, stride=2), nn.GroupNorm(4, 8)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        return self.last(torch.relu(self.scale(self.up(functional.max_pool2d(x, 2)))))


class Flat(nn.Module):
    """A plain convolutional network whose positions are flattened."""

    shape = (3, 9, 9)

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn, self.conv2 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3)
        self.fc1, self.fc2 = nn.Linear(6 * 4, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(self.conv2(torch.relu(self.bn(self.conv1(x)))), 2)
        return self.fc2(functional.gelu(self.fc1(x.flatten(1))))


class Gated(nn.Module):
    """A gated MLP on a residual stream without norms."""

    shape = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.come = nn.Linear(6, 8)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.go = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.come(x)
        x = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.go(x)


class Vision(nn.Module):
    """A vision transformer's block: class token, positions, one matrix for queries, keys and values."""

    shape = (6, 8)

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 7, 8))
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 3 * 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        x = torch.cat([self.token.expand(batch, -1, -1), x], 1)
        x = x + self.places[:, : x.shape[1]]
        qkv = self.qkv(self.norm(x)).reshape(batch, -1, 3, 4, 3).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q @ k.transpose(-1, -2) * 3**-0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return self.head(x[:, 0])


class ConvNext(nn.Module):
    """timm's block: a depthwise convolution, channels last, a layer norm, and a scale per channel."""

    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, stride=2)
        self.deep, self.norm = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.LayerNorm(6)
        self.fc1, self.fc2 = nn.Linear(6, 12), nn.Linear(12, 6)
        self.gamma = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.fc2(functional.gelu(self.fc1(y)))
        x = x + (y * self.gamma).permute(0, 3, 1, 2)
        return self.head(x.mean((-2, -1)))


class Windows(nn.Module):
    """Swin's way: shifted windows of an image, attention inside each."""

    shape = (8, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.merge = nn.Linear(32, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        y = y.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(y).view(len(y), 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 16, c)
        y = self.proj(y).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (2, 2), (1, 2))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.merge(x)


class Upscaling(nn.Module):
    """Pixel shuffle, resize, skip connections, padding, chunks, gated linear units, instance norm, PReLU."""

    shape = (4, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 8, 3), nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(12, 8, 1)
        self.norm, self.act = nn.InstanceNorm2d(8, affine=True), nn.PReLU(8)
        self.d = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.a(functional.pad(x, (1, 1, 1, 1)))))
        up = functional.pixel_shuffle(self.b(x), 2)
        skip = functional.interpolate(x, scale_factor=2, mode="nearest")
        y = functional.glu(self.c(torch.cat([skip, up], 1)), 1)
        one, two = y.chunk(2, 1)
        return self.d(torch.cat([two.flip(1), one], 1).clamp(min=0))


class Tagger(nn.Module):
    """Words to vectors, a linear layer, a recurrent layer, a head."""

    def __init__(self, recurrent: str = "LSTM") -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(40, 8), nn.Linear(8, 10)
        self.lstm = getattr(nn, recurrent)(10, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.inner(self.embed(ids)).relu())[0])


class Encoder(nn.Module):
    """PyTorch's transformer encoder."""

    shape = (5, 16)

    def __init__(self, *, norm_first: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, src: Tensor) -> Tensor:
        return self.encoder(src)


class Einsum(nn.Module):
    """Attention and projections written with einsum."""

    shape = (5, 8)

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 12, bias=False) for _ in range(3))
        self.o = nn.Parameter(torch.randn(4, 3, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (4, 3)) for layer in (self.q, self.k, self.v))
        weights = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bjhd,hdo->bio", weights, v, self.o)


NETS: dict[str, Any] = {
    "convolutions": Convolutions, "residual": Residual, "mobile": Mobile, "dense": Dense, "flat": Flat, "gated": Gated,
    "vision": Vision, "convnext": ConvNext, "windows": Windows, "upscaling": Upscaling, "encoder": Encoder,
    "einsum": Einsum,
}  # fmt: skip


def net(name: str) -> tuple[Any, Tensor]:
    """One of the networks and a sample of two."""
    torch.manual_seed(3)
    model = filled(NETS[name]())
    return model, torch.randn(2, *NETS[name].shape, generator=torch.Generator().manual_seed(5))
