# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M in few bits: the new version against the old one, on the same samples, judged window by window.

    python bench/language.py quantize --format w4g64 --seed 0      the new version; minutes on two cores
    python bench/language.py judge --format w4g64                  old and new, paired by window

The model, the tokens and the old version's weights are made by the root's `bench/language_data.py` and
`bench/language_worker.py` (`.bench/compare/old-FORMAT-SEED.safetensors`).
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".bench" / "language" / "model"
TOKENS = ROOT / ".bench" / "language" / "texts-2.safetensors"
WORK = ROOT / ".bench" / "compare"
SAMPLES, BATCH, TEXTS = 64, 8, ("wiki", "docs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["quantize", "judge"])
    parser.add_argument("--format", default="w4g64")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--windows", type=int, default=64, help="of each text, to judge on")
    options = parser.parse_args()
    if options.do == "quantize":
        quantize(options.format, options.seed, torch.device(options.device))
    else:
        seeds = [int(seed) for seed in options.seeds.split(",")]
        judge(options.format, seeds, torch.device(options.device), options.windows)


def quantize(format: str, seed: int, device: torch.device) -> None:
    """Quantize with the samples of one seed and leave the weights in `WORK`."""
    from fewbit.algorithms.gptq import ALGORITHM
    from fewbit.backends.torch.block_model import linear_layers
    from fewbit.backends.torch.blockwise import BlockStream
    from fewbit.backends.torch.weight_files import open_language_model
    from fewbit.progress import Run, make_progress
    from fewbit.quantization.blockwise import quantize_blocks
    from fewbit.quantization.journal import Journal

    tokens = load_file(TOKENS)["calibration"][seed * SAMPLES : (seed + 1) * SAMPLES].long()
    journal_folder = WORK / f"journal-{format}-{seed}"
    shutil.rmtree(journal_folder, ignore_errors=True)
    start = time.perf_counter()
    model = open_language_model(FOLDER, device=device)
    stream = BlockStream(model, [{"input_ids": batch} for batch in tokens.split(BATCH)])
    grid = grid_of(format)
    structure = [
        (f"{name}.{layer}") for name, block in zip(model.block_names, model.blocks) for layer, _ in linear_layers(block)
    ]
    journal = Journal(journal_folder, {"format": format, "seed": seed})
    run = Run(make_progress(True))
    run.begin([("quantize", 1)])
    with run.phase("quantize", len(stream), "block") as bar:
        facts = quantize_blocks(stream, dict.fromkeys(structure, grid), ALGORITHM, journal, bar)
    stream.close()
    run.close()
    seconds = time.perf_counter() - start
    weights = {}
    for block in range(journal.blocks()):
        weights |= {f"{name}.weight": tensor.dequantize() for name, tensor in journal.read(block)[0].items()}
    save_file(weights, WORK / f"new-{format}-{seed}.safetensors")
    worst = max(facts, key=lambda name: facts[name]["error"])
    answer = {
        "seconds": round(seconds, 1), "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "worst": worst, **facts[worst],
        "worse than rounding": sum(entry["error"] > entry["rounding_error"] for entry in facts.values()),
    }  # fmt: skip
    (WORK / f"new-{format}-{seed}.json").write_text(json.dumps(answer))
    print(answer)


def grid_of(format: str):
    """The grid of a format of the root's bench."""
    from fewbit.numerics.dtypes import Dtype
    from fewbit.numerics.granularity import QSchemeType
    from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
    from fewbit.numerics.scales import ScaleType

    if format in BLOCK_FORMATS:
        kind = BLOCK_FORMATS[format]
        return QuantizationGrid(
            kind.element, QSchemeType.per_group, group_size=kind.group_size, scale_type=kind.scale_type
        )
    bits, group = format[1:].split("g")
    return QuantizationGrid(
        Dtype[f"int{bits}"], QSchemeType.per_group, group_size=int(group), full_range=True,
        scale_type=ScaleType.bfloat16,
    )  # fmt: skip


@torch.no_grad()
def judge(format: str, seeds: list[int], device: torch.device, windows: int) -> None:
    """Perplexity and divergence by window, and the paired difference between new and old over all seeds."""
    from transformers import AutoModelForCausalLM

    tokens = {text: load_file(TOKENS)[text][:windows] for text in TEXTS}
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).to(device).eval()
    reference = {text: _log_probabilities(model, tokens[text].long(), device) for text in TEXTS}
    original = {name: value.clone() for name, value in model.state_dict().items()}
    losses: dict[tuple[str, int, str], tuple[torch.Tensor, torch.Tensor]] = {}
    for seed in seeds:
        for side in ("old", "new"):
            file = WORK / f"{side}-{format}-{seed}.safetensors"
            if not file.exists():
                continue
            model.load_state_dict({**original, **load_file(file)})
            for text in TEXTS:
                losses[side, seed, text] = _windows(model, tokens[text].long(), reference[text], device)
    for text in TEXTS:
        ids = tokens[text].long()
        floats = torch.stack([-r.gather(1, w[1:, None]).mean() for r, w in zip(reference[text], ids)])
        print(f"{text}: float {math.exp(floats.mean()):.3f}")
        for seed in seeds:
            for side in ("old", "new"):
                if (side, seed, text) in losses:
                    loss, divergence = losses[side, seed, text]
                    print(f"  {side} seed {seed}: perplexity {math.exp(loss.mean()):.3f}  KL {divergence.mean():.4f}")
        pairs = [seed for seed in seeds if ("old", seed, text) in losses and ("new", seed, text) in losses]
        for index, name in enumerate(("loss", "KL")):
            if pairs:
                # windows are the units; seeds are averaged, since the same windows are judged
                difference = torch.stack(
                    [losses["new", s, text][index] - losses["old", s, text][index] for s in pairs]
                ).mean(0)
                mean = difference.mean().item()
                half = 2.0 * float(difference.std()) / len(difference) ** 0.5  # Student's t for 64 windows
                interval = f"({mean - half:+.5f} to {mean + half:+.5f})"
                print(f"  new - old, {name}: {mean:+.5f} {interval}, {len(difference)} windows")


def _log_probabilities(model, ids: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    rows = []
    for batch in ids.split(4):
        rows += [row.log_softmax(-1).half() for row in model(batch.to(device), use_cache=False).logits[:, :-1].cpu()]
    return rows


def _windows(model, ids: torch.Tensor, reference: list[torch.Tensor], device: torch.device):
    losses, divergences = [], []
    at = 0
    for batch in ids.split(4):
        for row, window in zip(model(batch.to(device), use_cache=False).logits[:, :-1].cpu(), batch):
            actual, expected = row.float().log_softmax(-1), reference[at].float()
            losses.append(-actual.gather(1, window[1:, None]).mean())
            divergences.append((expected.exp() * (expected - actual)).sum(-1).mean())
            at += 1
    return torch.stack(losses), torch.stack(divergences)


if __name__ == "__main__":
    main()
