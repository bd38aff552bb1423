# SPDX-License-Identifier: Apache-2.0
"""What kind of file some bytes are: Magika (an embedding as one-hot product, a convolution, two dense layers)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

import assets

from ._pixels import same

TITLE = "file types (Magika)"
MAIN = "accuracy"
PIECE, FIRST, LAST = 6000, 24000, 72000
# Pygments' names of languages that Magika calls otherwise
OTHERS = {
    "rb": "ruby", "make": "makefile", "js": "javascript", "bash": "shell", "csharp": "cs", "nasm": "asm",
    "ts": "typescript", "md": "markdown", "common-lisp": "lisp", "emacs": "lisp", "docker": "dockerfile",
    "protobuf": "proto", "tex": "latex", "delphi": "pascal", "coffee-script": "coffeescript", "fortranfixed": "fortran",
    "gas": "asm", "pot": "po", "registry": "winregistry", "splus": "r", "vb.net": "vba", "xslt": "xml", "udiff": "diff",
    "systemverilog": "verilog", "tsx": "typescript", "perl6": "perl", "sqlite3": "sql", "tsql": "sql",
    "bat": "batch", "objective-c": "objectivec",
}  # fmt: skip


def model() -> Path:
    return assets.onnx_model("magika.onnx")


def make(part: str, random: np.random.Generator) -> Iterator[tuple[np.ndarray, str]]:
    """Example files of Pygments in languages that Magika knows, long ones cut; every third piece to judge on.

    The final part is what comes later in long files.
    """
    known = set(_labels())
    files = [(OTHERS.get(path.split("/")[0], path.split("/")[0]), data) for path, data in sorted(_sources().items())]
    pieces = [
        (language, data[start : start + PIECE])
        for language, data in files
        if language in known
        for start in range(*((0, FIRST) if part != "final" else (FIRST, LAST)), PIECE)
        if len(data) - start > 500
    ]
    for i, (language, data) in enumerate(pieces):
        if part == "final" or (i % 3 == 2) == (part == "judging"):
            yield _features(data), language


def _sources() -> dict[str, bytes]:
    return {path: data for path, data in assets.source_files().items() if not path.endswith((".output", ".py"))}


def _features(data: bytes) -> np.ndarray:
    """1024 bytes of the beginning and 1024 of the end, white space stripped, 256 where there are none."""
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    made = np.full(2048, 256, np.int32)
    made[: len(first)] = list(first)
    made[2048 - len(last) :] = list(last)
    return made


def feed(raw: np.ndarray) -> dict[str, np.ndarray]:
    return {"bytes": raw[None]}


def score(answers: list, labels: list, expected: list) -> dict[str, float]:
    """How many files are named right, and how many as the float model names them."""
    found, wanted = ([_labels()[int(outputs[0].argmax())] for outputs in part] for part in (answers, expected))
    return {"accuracy": same(found, labels), "agreement": same(found, wanted)}


@cache
def _labels() -> list[str]:
    labels: list[str] = json.loads(assets.onnx_model("magika.json").read_text())["target_labels_space"]
    return labels
