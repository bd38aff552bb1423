# SPDX-License-Identifier: Apache-2.0
"""What models are trained for, end to end: files on disk, one call of `finetune`, a number that rises clearly."""

import json
import random

import pytest
import torch
from torch import nn

from drawn_shapes import write_folder, write_yolo
from fewbit.data.config import generate_dataset_config
from fewbit.tuning.finetune import finetune
from tiny_models import transformer
from tiny_pictures import detr
from word_tokenizer import make_tokenizer

pytest.importorskip("accelerate")


def before_and_after(model, data, name, **options):
    """The number of a run before it and after."""
    settings = {"device": "cpu", "tensorboard": False, "batch_size": 16} | options
    facts = finetune(model, data, **settings).fewbit_record.facts
    assert facts["after"]["loss"] < facts["before"]["loss"]
    return facts["before"][name], facts["after"][name]


def rows_at(folder, rows):
    """A file of rows, and a folder with a tokenizer."""
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    make_tokenizer(start=True, ends=True).save_pretrained(folder / "tokenizer")
    return str(path), {"tokenizer": str(folder / "tokenizer"), "validation_ratio": 0.2}


def sentences(count, length=8, low=10, high=60):
    rng = random.Random(0)
    return [[f"w{rng.randrange(low, high)}" for _ in range(length)] for _ in range(count)]


def bert(head, **more):
    """A small encoder with a head of transformers'."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, vocab_size=96, max_position_embeddings=32, **more)
    return getattr(transformers, head)(config)


def test_causal_lm(tmp_path):
    """Each word is followed by the one three further on."""
    rows = [{"text": " ".join(f"w{10 + (start + 3 * n) % 40}" for n in range(10))} for start in range(40)] * 3
    path, config = rows_at(tmp_path, rows)
    model = transformer("llama", vocab_size=96)
    data = generate_dataset_config(path, ["tokenization"], config)
    before, after = before_and_after(model, data, "perplexity", epochs=15, lr=1e-2)
    assert before > 60 and after < 8  # of equal rows none is on both sides: these starts were never seen


def test_sequence_classification(tmp_path):
    """Whether a certain word is in it; the classes have names."""
    rng = random.Random(1)
    rows = []
    for words in sentences(160):
        sounds = rng.choice(["plain", "rare"])
        rows.append({"text": " ".join([*words, "w80"] if sounds == "rare" else [*words, "w10"]), "label": sounds})
        rng.shuffle(words)
    path, config = rows_at(tmp_path, rows)
    data = generate_dataset_config(path, ["tokenization"], config | {"task": "sequence_classification"})
    before, after = before_and_after(bert("BertForSequenceClassification"), data, "accuracy", epochs=6, lr=3e-3)
    assert before < 0.8 and after > 0.95


def test_token_classification(tmp_path):
    """High words are names; of words in several pieces the first has the tag."""
    rows = [{"words": words, "tags": [int(word > "w45") for word in words]} for words in sentences(160)]
    path, config = rows_at(tmp_path, rows)
    data = generate_dataset_config(path, ["tokenization"], config | {"task": "token_classification"})
    before, after = before_and_after(bert("BertForTokenClassification"), data, "f1", epochs=8, lr=5e-3)
    assert before < 0.6 and after > 0.95


def test_question_answering(tmp_path):
    """The answer is the one run of two high words."""
    rng, rows = random.Random(2), []
    for words in sentences(160):
        answer, place = f"w{rng.randrange(70, 80)} w{rng.randrange(80, 90)}", rng.randrange(len(words))
        context = " ".join([*words[:place], answer, *words[place:]])
        found = {"text": [answer], "answer_start": [context.index(answer)]}
        rows.append({"question": "w10 w11", "context": context, "answers": found})
    path, config = rows_at(tmp_path, rows)
    data = generate_dataset_config(path, ["tokenization"], config | {"task": "question_answering"})
    before, after = before_and_after(bert("BertForQuestionAnswering"), data, "exact_match", epochs=10, lr=5e-3)
    assert before < 0.2 and after > 0.9


def test_image_classification_of_a_plain_module(tmp_path):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    data = str(write_folder(tmp_path / "shapes", train=96))
    task = "image_classification"
    before, after = before_and_after(model, data, "accuracy", task=task, max_steps=40, lr=1e-2)
    assert before < 0.7 and after > 0.95


def test_image_classification(tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(**sizes, num_labels=3))
    data = str(write_folder(tmp_path / "shapes", train=96))
    before, after = before_and_after(model, data, "accuracy", max_steps=30, lr=1e-2)
    assert before < 0.7 and after > 0.95


def test_object_detection(tmp_path):
    data = str(write_yolo(tmp_path / "shapes", train=256, val=32, kinds=2))
    before, after = before_and_after(detr(), data, "map_50", max_steps=140, lr=1e-3, eval_every=70)
    assert before < 0.1 and after > 0.3


def test_segmentation(tmp_path):
    """Outlines become classes of pixels; the ground is one more class."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=32, num_labels=3,
        drop_path_rate=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    data = str(write_yolo(tmp_path / "shapes", train=64, val=16, outlines=True, count=2, kinds=2))
    model = SegformerForSemanticSegmentation(config)
    before, after = before_and_after(model, data, "mean_iou", max_steps=45, lr=5e-3, eval_every=15)
    assert before < 0.3 and after > 0.55
