# SPDX-License-Identifier: Apache-2.0
"""No input makes it crash, hang, write outside its output, run anything or allocate without bounds."""

import random
from pathlib import Path

import pytest

import fewbit
from mutation import MAKERS, damaged_copy, outcome

COPIES = 40
FORBIDDEN = (
    "import pickle",
    "pickle.load",
    "allow_pickle=True",
    " eval(",
    "exec(",
    "yaml.load(",
    "os.system",
    "shell=True",
)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_valid_dataset_of_each_kind_opens(kind, tmp_path):
    MAKERS[kind](tmp_path / "valid")
    assert outcome(tmp_path / "valid") == "samples"


@pytest.mark.parametrize("kind", MAKERS)
def test_damaged_files_end_in_samples_or_findings(kind, tmp_path):
    MAKERS[kind](tmp_path / "valid")
    rng = random.Random(f"{kind} 1")
    ends = set()
    for _ in range(COPIES):
        damaged_copy(tmp_path / "valid", tmp_path / "damaged", rng)
        ends.add(outcome(tmp_path / "damaged"))
    assert "findings" in ends


def test_nothing_in_the_package_unpickles_or_evaluates():
    for file in Path(fewbit.__file__).parent.rglob("*.py"):
        text = file.read_text()
        for word in FORBIDDEN:
            assert word not in text, f"{file} has {word!r}"
