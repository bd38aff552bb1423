# SPDX-License-Identifier: Apache-2.0
"""Two small tokenizers of the transformers library: words that are their own ids, and byte-level pieces of words."""

from functools import cache

WORDS = {f"w{i}": i for i in range(10, 96)} | {
    "<unk>": 0, "<pad>": 1, "</s>": 2, "<s>": 3, "[MASK]": 4, "user:": 5, "assistant:": 6,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }} </s> {% endfor %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GENERATION = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}<|im_end|>\n{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
)
"""Its generation block ends in white space, which trips the mask of transformers."""
SENTENCES = [
    "Question: What is the sum of two and three?\nAnswer:\nThe sum is <<2+3=5>>5.\n#### 5",
    "### Instruction:\nName a colour.\n\n### Response:\nBlue is a colour, and so is green.",
    "Summarize this dialog:\nAmy: are you coming?\nBen: yes, in an hour\n---\nSummary:\nBen comes in an hour.",
] * 3


def word_tokenizer(*, start=False, ends=False, template=None, **names):
    """Words `w10` to `w95`, each its own id, split at white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if start or ends:
        single = f"{'<s> ' if start else ''}$A{' </s>' if ends else ''}"
        pair = f"{single} {'$B:1 </s>:1' if ends else '$B:1'}"
        special = [("<s>", 3), ("</s>", 2)]
        inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"} | names
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    tokenizer.chat_template = template
    return tokenizer


@cache
def _trained():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(SENTENCES, trainer)
    return inner.to_str()


def piece_tokenizer(*, start=True, template=None, **names):
    """Byte-level pieces of words; padding has the id 0."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(_trained())
    if start:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"} | names
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    tokenizer.chat_template = template
    return tokenizer
