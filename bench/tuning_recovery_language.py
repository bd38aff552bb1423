# SPDX-License-Identifier: Apache-2.0
"""Part `language` of bench/tuning_recovery.py: SmolLM2-135M with int4 weights learns from the float model.

The model and the texts are those of bench/language_data.py. Weights become int4 in groups of 64 (`rtn`: plain rounding,
`gptq`: what `compress_weights` does), the result is trained by `finetune(method="distill")` on texts that neither
calibrated it nor are judged on (passages of BoolQ, the documentation of Django), and its perplexity is compared on two
others (passages of BoolQ's test part, the documentation of Flask).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

DATA = "language_data.py"
SAMPLES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be asked for."""
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1.2e-4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--way", default="rtn,gptq")
    parser.add_argument("--judged", type=int, default=64)


def measure(given: argparse.Namespace, folder: str, tokens: str) -> None:
    """Print a line of JSON for each way."""
    import torch
    from safetensors.torch import load_file
    from torch.utils.data import DataLoader

    import fewbit
    from fewbit.schemes.scope import IgnoredScope
    from language_worker import load, perplexity

    ids = load_file(tokens)
    texts = ids["training"].long()
    model = load(folder, given.device)
    rows = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in texts]
    ends = IgnoredScope(names=["lm_head", "model.embed_tokens"], validate=False)
    calibration = [{"input_ids": part.to(given.device)} for part in ids["calibration"][:SAMPLES].split(4)]

    def judged(one: Any) -> dict[str, float]:
        return {text: perplexity(one.eval().to(given.device), ids[text][: given.judged]) for text in ("wiki", "docs")}

    plain = judged(model)
    for way in given.way.split(","):
        how: dict[str, Any] = {"algorithm": "rtn"} if way == "rtn" else {"dataset": calibration, "subset_size": SAMPLES}
        small = fewbit.compress_weights(model, mode="int4_sym", group_size=64, ignored_scope=ends, **how)
        before = judged(small)
        start = time.perf_counter()
        tuned = fewbit.finetune(
            small,
            DataLoader(rows, batch_size=given.batch_size, shuffle=True, generator=torch.Generator().manual_seed(0)),
            method="distill",
            teacher=model,
            task="causal_lm",
            max_steps=given.steps,
            lr=given.lr,
            temperature=given.temperature,
            device=given.device,
            validation=False,
        )
        seconds = time.perf_counter() - start
        after = judged(tuned)
        share = {text: (before[text] - after[text]) / (before[text] - plain[text]) for text in plain}
        told = {"way": way, "float": plain, "before": before, "after": after, "recovered": share, "seconds": seconds}
        print(
            json.dumps(
                told | {"steps": given.steps, "lr": given.lr, "rows": len(rows), "batch_size": given.batch_size}
            ),
            flush=True,
        )
