# SPDX-License-Identifier: Apache-2.0
"""What each preset costs a real model: all-MiniLM-L6-v2, sentence embeddings.

    python bench/minilm.py                every preset, then its section of bench/RESULTS.md is written
    python bench/minilm.py w8a8 w4a16     some presets, printed only

An embedding is the mean of the last hidden states over the attention mask, normalised. Figures: the mean cosine between
the embedding of the float model and of the quantized one; retrieval on BoolQ (the passage of a question among all the
passages: recall@1, and how often the first answer is the one the float model gives); the correlation with how similar
people find the documents of Lee's set. Calibration uses the development part of BoolQ, figures its test part.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

import assets
import models
from results import table, write_section

PAIRS = 400
LENGTH = 256
CALIBRATION = 64


@dataclass(frozen=True)
class Embedded:
    """Embeddings of the evaluation texts, `[texts, 384]` each."""

    questions: Tensor
    passages: Tensor
    documents: Tensor


@dataclass(frozen=True)
class Figures:
    """How good one model is, beside the float one."""

    cosine: float
    recall: float
    agreement: float
    lee: float


def embed(model: nn.Module, texts: tuple[str, ...], batch: int = 25) -> Tensor:
    """Normalised means over the mask, `[texts, width]`; texts of like length are batched together."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    rows: list[Tensor] = [torch.empty(0)] * len(texts)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        tokens = tokenize(tuple(texts[i] for i in part))
        with torch.no_grad():
            states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        for i, row in zip(part, torch.nn.functional.normalize(means.float(), dim=-1)):
            rows[i] = row
    return torch.stack(rows)


@cache
def tokenize(texts: tuple[str, ...]) -> dict[str, Tensor]:
    """Token ids and mask, `[texts, longest]`."""
    encoded = _tokenizer().encode_batch(list(texts))
    return {
        "input_ids": torch.tensor([e.ids for e in encoded]),
        "attention_mask": torch.tensor([e.attention_mask for e in encoded]),
    }


def embed_all(model: nn.Module) -> Embedded:
    """Everything the figures need."""
    questions, passages = pairs()
    return Embedded(embed(model, questions), embed(model, passages), embed(model, documents()[0]))


def figures(ours: Embedded, reference: Embedded) -> Figures:
    """A model's figures; those of the reference itself have cosine and agreement 1."""
    kinds = ("questions", "passages", "documents")
    cosines = torch.cat([(getattr(ours, kind) * getattr(reference, kind)).sum(-1) for kind in kinds])
    first = (ours.questions @ ours.passages.T).argmax(1)
    wanted = (reference.questions @ reference.passages.T).argmax(1)
    right = torch.arange(len(first))
    upper = torch.triu_indices(len(ours.documents), len(ours.documents), 1).unbind()
    found = (ours.documents @ ours.documents.T)[upper]
    people = documents()[1][upper]
    return Figures(
        cosine=cosines.mean().item(),
        recall=(first == right).float().mean().item(),
        agreement=(first == wanted).float().mean().item(),
        lee=torch.corrcoef(torch.stack([found, people]))[0, 1].item(),
    )


@cache
def pairs() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Questions and their passages, every passage once."""
    rows = [json.loads(line) for line in assets.boolq().read_text().splitlines()]
    by_passage = {row["passage"]: row["question"] for row in rows}
    return tuple(by_passage.values())[:PAIRS], tuple(by_passage)[:PAIRS]


@cache
def documents() -> tuple[tuple[str, ...], Tensor]:
    """Lee's documents and people's similarities, the upper triangle of `[50, 50]`."""
    texts, similarities = assets.lee()
    table = [[float(cell) for cell in line.split()] for line in similarities.read_text().splitlines()]
    return tuple(texts.read_text(encoding="latin-1").splitlines()), torch.tensor(table)


def calibration() -> list[dict[str, Tensor]]:
    """64 passages in padded batches of 8."""
    rows = [json.loads(line)["passage"] for line in assets.boolq_for_calibration().read_text().splitlines()]
    return [tokenize(tuple(rows[i : i + 8])) for i in range(0, CALIBRATION, 8)]


@cache
def _tokenizer() -> object:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(assets.minilm() / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()
    return tokenizer


def write_passages() -> None:
    """The calibration set and sixteen passages of the test part as files, for sides that have no tokenizer."""
    from safetensors.torch import save_file

    tensors = {f"{i}.{name}": tensor for i, batch in enumerate(calibration()) for name, tensor in batch.items()}
    folder = models.WORK / "models"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "passages.safetensors")
    save_file(tokenize(pairs()[1][:16]), folder / "judging.safetensors")


def measure(name: str, reference: nn.Module, expected: Embedded) -> list[str]:
    """One row: a preset's bytes, seconds and figures."""
    import fewbit
    from fewbit.schemes.presets import preset

    quantizer = fewbit.ModelQuantizer(preset(name))
    start = time.perf_counter()
    frozen = quantizer.freeze(quantizer.quantize_model(reference, calibration()), inplace=True)
    seconds = time.perf_counter() - start
    return row(name, models.held_bytes(frozen), seconds, figures(embed_all(frozen), expected))


def row(name: str, size: int, seconds: float, found: Figures) -> list[str]:
    """A line of the table."""
    numbers = [f"{found.cosine:.5f}", f"{found.recall:.4f}", f"{found.agreement:.4f}", f"{found.lee:.4f}"]
    return [name, f"{size / 1e6:.1f}", f"{seconds:.2f}", *numbers]


HEAD = ["preset", "MB", "seconds", "cosine", "recall@1", "same first answer", "Lee50 Pearson"]


def main(arguments: list[str]) -> None:
    from fewbit.schemes.presets import preset_names

    reference = models.minilm(assets.minilm())
    expected = embed_all(reference)
    rows = [row("float32", models.held_bytes(reference), 0, figures(expected, expected))]
    print(rows[0], flush=True)
    for name in arguments or preset_names():
        rows.append(measure(name, reference, expected))
        print(rows[-1], flush=True)
    text = table(HEAD, rows)
    print(text)
    if not arguments:
        about = f"""\
All of all-MiniLM-L6-v2 as each preset quantizes it and `freeze` packs it. MB is every tensor the model keeps, those of
kernels too; seconds are quantize + freeze with {CALIBRATION} calibration passages. {PAIRS} questions and passages of
BoolQ, of up to {LENGTH} tokens."""
        write_section("Accuracy by preset on MiniLM (`bench/minilm.py`)", f"{about}\n\n{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
