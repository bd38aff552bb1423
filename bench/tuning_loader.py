# SPDX-License-Identifier: Apache-2.0
"""The loader against the one a `transformers` Trainer makes: the same rows, the same tokens, batches on the device.

    python bench/tuning_loader.py SIDE ROWS DEVICE      one measurement, as a line of JSON

Called by bench/tuning.py, which runs each measurement in a process of its own; what is imported and what is kept on
disk (the tokens of both sides) is there before the clock starts.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WORK = Path(__file__).parents[1] / ".bench" / "tuning"
WORDS = 4000
BATCH = 16
GROUPED = "fewbit, lengths grouped"
SIDES = ("trainer", "fewbit", GROUPED)
FIRST = "first batch"


def make_rows(rows: int) -> Path:
    """A corpus whose texts have from a few to a thousand words, most of them short."""
    path = WORK / f"rows-{rows}.jsonl"
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        rng = random.Random(0)
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("w") as file:
            for _ in range(rows):
                length = min(1000, 3 + int(rng.lognormvariate(4, 1)))
                text = " ".join(f"w{int(WORDS * rng.random() ** 3)}" for _ in range(length))
                file.write(json.dumps({"text": text}) + "\n")
        unfinished.replace(path)
    return path


def make_tokenizer() -> Path:
    """A tokenizer of these words, in a folder."""
    folder = WORK / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words = {name: i for i, name in enumerate(("<pad>", "<end>", "<unknown>"))}
        inner = Tokenizer(models.WordLevel(words | {f"w{i}": i + 3 for i in range(WORDS)}, unk_token="<unknown>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        names = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unknown>"}
        PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)
    return folder


def trainer_loader(rows: int, device: str) -> Any:
    """What a Trainer reads from if nobody says anything: its own collator, its own sampler."""
    import torch
    from transformers import AutoTokenizer, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(make_tokenizer())
    tokens = trainer_tokens(rows, tokenizer) if has_datasets() else plain_tokens(rows, tokenizer)
    options = TrainingArguments(
        output_dir=str(WORK / "run"),
        per_device_train_batch_size=BATCH,
        report_to=[],
        use_cpu=device == "cpu",
        remove_unused_columns=False,
    )
    trainer = Trainer(torch.nn.Linear(1, 1), options, train_dataset=tokens, processing_class=tokenizer)
    return trainer.get_train_dataloader()


def has_datasets() -> bool:
    """Whether the package that a Trainer's data usually comes from is there."""
    return find_spec("datasets") is not None


def trainer_tokens(rows: int, tokenizer: Any) -> Any:
    """Tokens as a Hugging Face dataset keeps them, on disk."""
    import datasets

    kept = WORK / f"tokens-{rows}"
    if not kept.exists():
        texts = datasets.load_dataset(
            "json", data_files=str(make_rows(rows)), split="train", cache_dir=str(WORK / "hf")
        )
        tokens = texts.map(lambda part: tokenizer(part["text"]), batched=True, remove_columns=["text"])
        tokens.save_to_disk(kept)
    return datasets.load_from_disk(kept)


def plain_tokens(rows: int, tokenizer: Any) -> list[dict[str, Any]]:
    """The same tokens as rows in memory, which are read faster than those of a dataset on disk."""
    made = tokenizer(list(_texts(rows)))
    return [dict(zip(made, row)) for row in zip(*made.values())]


def our_loader(rows: int, device: str, grouped: bool) -> Any:
    """The three calls."""
    import fewbit

    steps = ["tokenization", "length_grouping"] if grouped else ["tokenization"]
    options = {"tokenizer": str(make_tokenizer()), "batch_size": BATCH, "add_eos": False, "validation_ratio": 0}
    config = fewbit.generate_dataset_config(str(make_rows(rows)), steps, options)
    return fewbit.device_aware_data_loading(config, fewbit.get_custom_data_collator(config), device)


def read(batches: Iterable[Any], device: str) -> dict[str, float]:
    """One epoch: seconds, and all places of all batches."""
    import torch

    places, start = 0, time.perf_counter()
    for batch in batches:
        places += batch["input_ids"].numel()
    if device != "cpu":
        torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - start, "places": places}


def measure(side: str, rows: int, device: str) -> dict[str, Any]:
    """One side."""
    if side == FIRST:
        next(iter(our_loader(rows, device, True)))  # fills the cache, if it is not full, and imports everything
        start = time.perf_counter()
        next(iter(our_loader(rows, device, True)))
        return {"seconds": time.perf_counter() - start}
    loader = trainer_loader(rows, device) if side == "trainer" else our_loader(rows, device, side == GROUPED)
    first = next(iter(loader))  # what is set up once is not counted, on either side
    assert str(first["input_ids"].device).startswith(device.partition(":")[0])
    report = getattr(loader, "report", None)
    before = 0 if report is None else report.useful
    found = read(loader, device)
    found["tokens"] = count_words(rows)
    if report is None:
        return found | {"from": "datasets" if has_datasets() else "rows in memory"}
    assert report.useful - before == found["tokens"]
    return found | {"workers": report.workers, "kind": report.kind}


def count_words(rows: int) -> int:
    """Of all rows; a word is a token."""
    return sum(len(text.split()) for text in _texts(rows))


def _texts(rows: int) -> Iterable[str]:
    with make_rows(rows).open() as file:
        yield from (json.loads(line)["text"] for line in file)


if __name__ == "__main__":
    os.environ.setdefault("FEWBIT_CACHE", str(WORK / "cache"))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
