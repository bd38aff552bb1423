# SPDX-License-Identifier: Apache-2.0
"""Finding the passage that answers a question: all-MiniLM-L6-v2, a transformer encoder exported by PyTorch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import assets

from . import FOLDER

TITLE = "sentence encoder (MiniLM)"
MAIN = "recall"
PAIRS, LENGTH, BATCH = 300, 256, 20
CALIBRATION = 128


def model() -> Path:
    """The encoder's last hidden states as ONNX, any batch and length; exported once."""
    path = FOLDER / "minilm.onnx"
    if not path.exists():
        import torch

        import models

        network = models.minilm(assets.minilm())
        network.set_attn_implementation("eager")

        class LastStates(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
                return self.network(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]

        names, tokens = ["input_ids", "attention_mask"], torch.ones(2, 9, dtype=torch.int64)
        dynamic = {name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]}
        unfinished = path.with_name("unfinished.onnx")
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                LastStates().eval(),
                (tokens, tokens),
                str(unfinished),
                dynamo=False,
                opset_version=17,
                input_names=names,
                output_names=["last_hidden_state"],
                dynamic_axes=dynamic,
            )
        unfinished.rename(path)
    return path


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, list]]:
    """To calibrate, single passages; to judge, batches of texts of like length, `[2, batch, tokens]`.

    The label says which texts a batch holds: `["question" | "passage", index, tokens]` each.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(assets.minilm() / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()
    path = assets.boolq_for_calibration() if part == "calibration" else assets.boolq()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if part == "calibration":
        batches = [[("passage", i, row["passage"])] for i, row in enumerate(rows[:CALIBRATION])]
    else:
        pairs = list({row["passage"]: row["question"] for row in rows}.items())[PAIRS * (part == "final") :][:PAIRS]
        kinds = ("passage", "question")
        texts = [(kind, i, text) for i, pair in enumerate(pairs) for kind, text in zip(kinds, pair)]
        texts.sort(key=lambda text: len(text[2]))
        batches = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
    for batch in batches:
        encoded = tokenizer.encode_batch([text for _, _, text in batch])
        yield (
            np.array([[e.ids for e in encoded], [e.attention_mask for e in encoded]]),
            [[kind, i, sum(e.attention_mask)] for (kind, i, _), e in zip(batch, encoded)],
        )


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    return {"input_ids": raw[0].astype(np.int64), "attention_mask": raw[1].astype(np.int64)}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """How often a question's passage is the nearest of all, and how often the nearest is the float model's.

    Padding counts for nothing in an embedding, so its rows are set to zero in the outputs, in place.
    """
    found, wanted = (embeddings(part, labels) for part in (answers, expected))
    first, same = ((e["question"] @ e["passage"].T).argmax(1) for e in (found, wanted))
    both = [(found[kind] * wanted[kind]).sum(-1) for kind in ("question", "passage")]
    return {
        "recall": float((first == np.arange(len(first))).mean()),
        "agreement": float((first == same).mean()),
        "embedding": float(np.mean(both)),
    }


def embeddings(outputs: list, labels: list) -> dict[str, np.ndarray]:
    """Means over the tokens of each text, of length 1, by kind and index."""
    made: dict[str, dict[int, np.ndarray]] = {"question": {}, "passage": {}}
    for (states,), texts in zip(outputs, labels):
        for rows, (kind, index, tokens) in zip(states, texts):
            rows[tokens:] = 0
            made[kind][index] = (total := rows.sum(0)) / np.linalg.norm(total)
    return {kind: np.stack([rows[i] for i in sorted(rows)]) for kind, rows in made.items()}
