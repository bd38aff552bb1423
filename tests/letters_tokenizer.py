# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that a few sentences made: pieces of words, with a start, an end, and padding that is number 0."""

from functools import cache

SENTENCES = [
    "Question: What is the sum of two and three?\nAnswer:\nThe sum is <<2+3=5>>5.\n#### 5",
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.",
    "### Instruction:\nName a colour.\n\n### Response:\nBlue is a colour, and so is green.",
    "Summarize this dialog:\nAmy: are you coming?\nBen: yes, in an hour\n---\nSummary:\nBen comes in an hour.",
    "Correct this to standard English: He go home.\n---\nCorrected:\nHe goes home.",
] * 3

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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


def make_tokenizer(*, start=True, template=None, **more):
    """A tokenizer whose padding is number 0 unless said otherwise."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(_trained())
    if start:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"} | more
    made = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    made.chat_template = template
    return made
