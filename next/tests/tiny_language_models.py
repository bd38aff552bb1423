# SPDX-License-Identifier: Apache-2.0
"""Tiny language models of every architecture that GGUF files hold, with a tokenizer."""

import json

import torch
import transformers

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 128, "bos_token_id": 0,
    "eos_token_id": 0, "pad_token_id": None, "initializer_range": 0.15,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
MODELS = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-3": ("Llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 32}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3Text", {**GEMMA, "num_hidden_layers": 7}),
    "phi3": ("Phi3", {}),
    "gpt2": ("GPT2", {}),
}
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and 12345 sheep watch it.\n",
    "Llamas don't eat 99 pancakes; they'll eat grass... won't they?\n\n  def f(x):\n    return x ** 2\n",
    "Ein kleines Stück Kuchen: süß, naïve café, 東京 and мир. " * 2,
]
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def tiny(name, **changes):
    """A random model whose norms and biases are not at their initial values."""
    kind, own = MODELS[name]
    sizes = {**SIZES, **own, **changes}
    if kind == "GPT2":
        sizes.pop("intermediate_size"), sizes.pop("num_key_value_heads")
    class_name = {"Gemma3Text": "Gemma3ForCausalLM", "GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, class_name)(getattr(transformers, f"{kind}Config")(**sizes)).eval()
        with torch.no_grad():
            for tensor in model.parameters():
                if tensor.ndim == 1:
                    tensor += torch.randn_like(tensor) * 0.1
    return model


def save(model, folder, *, pattern=None):
    """A model and a byte-level tokenizer as a Hugging Face folder."""
    model.save_pretrained(folder)
    byte_level(folder, pattern=pattern)
    return folder


def byte_level(folder, *, pattern=None, digits=False, size=320, ignore_merges=False):
    """A byte-level BPE tokenizer, trained on a few sentences, saved and returned."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        plain = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    elif digits:
        plain = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    tokenizer.pre_tokenizer, tokenizer.decoder = plain, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
    return wrapped


def sentencepiece(folder, *, prefix=True, size=420):
    """A BPE tokenizer with bytes to fall back on, as those of Llama 2 and Gemma, saved and returned."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    words = [text[start : start + 6] for text in TEXTS[:2] for start in range(len(text))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(words, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are no special tokens
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    wrapped.save_pretrained(folder)
    return wrapped
