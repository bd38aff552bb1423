# SPDX-License-Identifier: Apache-2.0
"""A tokenizer made of words that are their own numbers, and what a model takes."""

from fewbit.data.signature import InputSpec, Signature

WORDS = {f"w{i}": i for i in range(10, 96)} | {
    "<unk>": 0, "<pad>": 1, "</s>": 2, "<s>": 3, "[MASK]": 4, "user:": 5, "assistant:": 6, "<image>": 7,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }} </s> {% endfor %}"
)


def make_tokenizer(*, start=False, ends=False, template=None, **more):
    """A tokenizer whose words are `w10` to `w95`, each its own number."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if start or ends:
        single = f"{'<s> ' if start else ''}$A{' </s>' if ends else ''}"
        pair = f"{single} {'$B:1 </s>:1' if ends else '$B:1'}"
        special = [("<s>", 3), ("</s>", 2)]
        inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"} | more
    made = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    made.chat_template = template
    return made


def takes(*names):
    """What a model takes that has these inputs and says nothing about their shapes."""
    return Signature("torch", tuple(InputSpec(name, required=False) for name in names or ("input_ids",)))


def ids(dataset):
    """The tokens of every sample."""
    return [sample["input_ids"].tolist() for sample in dataset]


def lines(dataset):
    """The record's lines by their names."""
    return {line["what"]: line for line in dataset.record.lines}
