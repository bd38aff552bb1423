# SPDX-License-Identifier: Apache-2.0
"""Tiny language models of every architecture that GGUF takes, and tiny tokenizers."""

import json

import torch
import transformers

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 128, "bos_token_id": 0,
    "eos_token_id": 0, "pad_token_id": None, "initializer_range": 0.15,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
ARCHITECTURES = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-3": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 32}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-yarn": (
        "Qwen2",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                             "original_max_position_embeddings": 32}},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3Text", {**GEMMA, "num_hidden_layers": 7}),
    "phi3": ("Phi3", {}),
    "gpt2": ("GPT2", {}),
}  # fmt: skip


def tiny(name, **changes):
    """A random model of an architecture, its norms and biases not at their usual values."""
    kind, own = ARCHITECTURES[name]
    sizes = {**SIZES, **own, **changes}
    if kind == "GPT2":
        sizes.pop("intermediate_size"), sizes.pop("num_key_value_heads")
    torch.manual_seed(0)
    made = {"Gemma3Text": "Gemma3", "GPT2": "GPT2LMHeadModel"}.get(kind, kind)
    model_class = getattr(transformers, made if made.endswith("Model") else f"{made}ForCausalLM")
    model = model_class(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim == 1:
                tensor += torch.randn_like(tensor) * 0.1
    return model


# As the tokenizers of Llama 3 and Qwen 2 have them.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and 12345 sheep watch it.\n",
    "Llamas don't eat 99 pancakes; they'll eat grass... won't they?\n\n  def f(x):\n    return x ** 2\n",
    "Ein kleines Stück Kuchen: süß, naïve café, 東京 and мир. " * 2,
]


def sentencepiece(folder, *, prefixed=True, size=420):
    """A BPE tokenizer with bytes to fall back on, as those of Llama 2 and Gemma, saved and returned."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    words = [text[start : start + 6] for text in TEXTS[:2] for start in range(len(text))]
    tokenizer.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    )
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are no special tokens
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.save_pretrained(folder)
    return made


def byte_level(folder, *, pre=None, size=320):
    """A byte-level BPE tokenizer, trained on a few sentences, saved and returned."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
    made.save_pretrained(folder)
    return made
