# SPDX-License-Identifier: Apache-2.0
"""Every hard-won fact of a finished issue has a test that exists, or a reason why it was dropped."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FINISHED = ("2",)
FACTS = runpy.run_path(str(ROOT / "docs" / "make_facts.py"))


def test_the_table_is_up_to_date():
    assert (ROOT / "docs" / "facts.tsv").read_text() == FACTS["text"](), "run: python docs/make_facts.py"


@pytest.mark.parametrize("issue", FINISHED)
def test_rows_of_finished_issues_are_filled(issue):
    empty = [name for name, owner, value in FACTS["rows"]() if owner == issue and not value]
    assert not empty, f"no test for {', '.join(empty)}"


def test_named_tests_exist():
    for name, _, value in FACTS["rows"]():
        if not value or value.startswith("dropped:"):
            continue
        for reference in re.split(r"[;,]\s*", value):
            path, _, test = reference.strip().partition("::")
            file = ROOT / path
            assert file.is_file(), f"{name}: {path}"
            function = test.partition("[")[0].rpartition("::")[2]
            assert not function or f"def {function}(" in file.read_text(), f"{name}: {reference}"
