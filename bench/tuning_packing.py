# SPDX-License-Identifier: Apache-2.0
"""What share of the places of batches hold tokens: padded to the longest, lengths grouped, packed into rows.

    python bench/tuning_packing.py ROWS         a line of JSON for each

The ragged rows of bench/tuning_loader.py, read through the loader once, batch by batch. Texts longer than a row go on
in the next one, so no way loses a token, which is checked.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tuning_loader import BATCH, WORK, count_words, make_rows, make_tokenizer

LENGTHS = (512, 1024, 2048)
FEW = 4
"""Packed rows in a batch: their mask has a place for each pair of tokens."""


def measure(rows: int, way: str, batch: int, steps: list[str], **more: Any) -> dict[str, Any]:
    """An epoch of batches prepared in one way: tokens and places; of packed rows as if each had its whole length."""
    import fewbit

    options = {"tokenizer": str(make_tokenizer()), "add_eos": False, "validation_ratio": 0, "batch_size": batch, **more}
    config = fewbit.generate_dataset_config(str(make_rows(rows)), ["tokenization", *steps], options)
    loader = fewbit.device_aware_data_loading(config, fewbit.get_custom_data_collator(config), "cpu")
    widths = {item["input_ids"].shape[1] for item in loader}
    report, expected = loader.report, count_words(rows)
    assert report.useful == expected, f"{way}: {report.useful:,} tokens, there are {expected:,}"
    places = report.samples * more.get("max_length", 0) or report.places
    told = {"way": way, "batch_size": batch, "samples": report.samples, "tokens": report.useful}
    return told | {"places": places, "useful": report.useful / places, "widest": max(widths)}


def main(rows: int) -> None:
    """Print a line for each way."""
    ways: list[tuple[str, int, list[str], dict[str, Any]]] = [
        ("padded to the longest", BATCH, [], {}),
        ("lengths grouped, padded", BATCH, ["length_grouping"], {}),
    ]
    for length in LENGTHS:
        more = {"max_length": length, "packing_long": "split"}
        ways.append((f"packed into {length:,}", FEW, ["packing"], more))
    for way, batch, steps, more in ways:
        print(json.dumps(measure(rows, way, batch, steps, **more)), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("FEWBIT_CACHE", str(WORK / "cache"))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main(int(sys.argv[1]))
