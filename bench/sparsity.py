# SPDX-License-Identifier: Apache-2.0
"""Zeros in models: how good they stay and what it takes, beside llm-compressor, NNCF and SparseML.

    python bench/sparsity.py language                          SmolLM2 at 50 % and 2:4, with and without int4: hours
    python bench/sparsity.py cnn                               two networks for CIFAR-10, trained here: an hour or two
    python bench/sparsity.py onnx                              real ONNX models from folders of .npz: minutes
    python bench/sparsity.py detection | segmentation          drawn shapes in YOLO's layout: minutes
    python bench/sparsity.py PART --quick                      a small part of it: to see that it runs
    python bench/sparsity.py PART --table [--write]            what was measured so far; as a section of RESULTS.md

Each measurement is a process of its own (bench/sparsity_worker.py). Results gather in `.bench/sparsity.json`, those of
a part in `.bench/sparsity.part.json`, a measurement made again in the place of the old one. With `--device cuda
--packages DIR` there need be no network and no environments; see bench/language_pack.py and bench/sparsity_data.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import language
import sparsity_cnn
import sparsity_language
import sparsity_onnx
import sparsity_shapes
import sparsity_table
from results import write_section

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]
# part -> the module that measures it, what its table is called, what makes the table
PARTS: dict[str, tuple[Any, str, Callable[[list[Row]], str]]] = {
    "language": (sparsity_language, "SmolLM2-135M with half of its weights zero", sparsity_table.language),
    "cnn": (sparsity_cnn, "Zeros in networks for CIFAR-10", sparsity_table.cnn),
    "onnx": (sparsity_onnx, "Zeros in ONNX models from a folder of `.npz`", sparsity_onnx.text),
    "detection": (sparsity_shapes, "Zeros in a detector", sparsity_shapes.text),
    "segmentation": (sparsity_shapes, "Zeros in a segmentation model", sparsity_shapes.text),
}
# part -> option -> its value, and with --quick
SIZES: dict[str, dict[str, tuple[Any, Any]]] = {
    "language": {"blocks": (None, 2), "samples": (language.SAMPLES, 8), "judged": (language.JUDGED, 4)},
    "cnn": {"epochs": (8, 1), "more": (10, 1), "limit": (None, 1280), "judged": (None, 1000), "samples": (500, 100)},
    "onnx": {"samples": (128, 16), "seconds": (sparsity_onnx.SECONDS, 3)},
    "detection": {"pictures": (1024, 64), "steps": (1500, 20), "more": (600, 12)},
    "segmentation": {"pictures": (512, 64), "steps": (600, 20), "more": (300, 12)},
}
LISTS = {
    "language": {
        "formats": tuple(sparsity_language.FORMATS),
        "sides": tuple(sparsity_language.SIDES),
        "seeds": tuple(map(str, range(language.SEEDS))),
    },
    "cnn": {"nets": sparsity_cnn.NETS, "sides": tuple(sparsity_cnn.SIDES)},
    "onnx": {"tasks": sparsity_onnx.TASKS, "asked": tuple(sparsity_onnx.ASKED)},
}


def read() -> argparse.Namespace:
    """What is asked for; options that are not of the part are refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for part, sizes in SIZES.items():
        one = parts.add_parser(part)
        for name, (usual, quick) in sizes.items():
            one.add_argument(f"--{name}", type=int, help=f"{usual or 'all'}, or {quick} with --quick")
        for name, values in LISTS.get(part, {}).items():
            one.add_argument(f"--{name}", default=",".join(values), help="some of these, between commas")
        one.add_argument("--quick", action="store_true", help="small sizes, where none is said")
        one.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        one.add_argument("--packages", type=Path, help="folder of bench/language_pack.py, instead of environments")
        one.add_argument("--together", type=int, default=1, help="measurements of language at a time, without seconds")
        one.add_argument("--split", action="store_true", help="where the time goes on a GPU too, which costs some")
        one.add_argument("--patience", type=float, default=7200, help="seconds for one measurement")
        one.add_argument("--table", action="store_true", help="measure nothing")
        one.add_argument("--write", action="store_true", help="write the section of bench/RESULTS.md")
    options = parser.parse_args()
    for name, values in LISTS.get(options.part, {}).items():
        asked = {entry.partition(":")[0] for entry in getattr(options, name).split(",")}
        if unknown := asked - {*values}:
            parser.error(f"--{name}: there is no {', '.join(sorted(unknown))}; there are {', '.join(values)}")
    options.whole = True
    for name, (usual, quick) in SIZES[options.part].items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else usual)
        options.whole &= getattr(options, name) == usual
    return options


def kept(path: Path) -> dict[str, list[Row]]:
    """The rows of each part that were measured so far."""
    found: dict[str, list[Row]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(part: str, new: Row, path: Path) -> None:
    """A new row in the place of an old one of the same question; written at once, since other parts may run too."""
    keys, found = PARTS[part][0].KEYS, kept(path)
    rows = [row for row in found.get(part, []) if [row.get(key) for key in keys] != [new.get(key) for key in keys]]
    found[part] = [*rows, new]
    unfinished = path.with_name(f"{path.name}.{part}")
    lines = (f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in found.items())
    unfinished.write_text("{" + ",\n".join(lines) + "}\n")
    unfinished.replace(path)


def main() -> None:
    options = read()
    module, title, text = PARTS[options.part]
    path = ROOT / ".bench" / ("sparsity.json" if options.whole else "sparsity.part.json")
    if not options.table:
        language.WORK.mkdir(parents=True, exist_ok=True)
        for row in module.measured(options):
            keep(options.part, row, path)
            print(time.strftime("%H:%M:%S"), json.dumps(row), file=sys.stderr, flush=True)
    like = {name: getattr(options, name) for name in (*SIZES[options.part], "device") if name in module.KEYS}
    rows = kept(path).get(options.part, [])
    made = text([row for row in rows if all(row.get(name) == value for name, value in like.items())])
    print(made)
    if options.write:
        where = " on a GPU" if options.device == "cuda" else ""
        write_section(f"{title}{where} (`bench/sparsity.py {options.part}`)", made)


if __name__ == "__main__":
    main()
