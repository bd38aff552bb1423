# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from fewbit.data.findings import Code, DataReport, Policy, Severity
from fewbit.data.sample import Place
from fewbit.errors import DataError, UsageError

CODES = {
    "bad-row": Code(Severity.ERROR, "a row is bad", "mend it", "raise", ("drop", "repair")),
    "odd-row": Code(Severity.WARN, "a row is odd", "look at it"),
    "note": Code(Severity.INFO, "good to know", "nothing"),
}


def test_a_report_groups_worst_first_and_counts_exactly():
    report = DataReport("data", codes=CODES, limit=2)
    report.add("note", "hello")
    for line in range(5):
        report.add("bad-row", f"row {line}", Place("a.csv", line=line))
    report.add("odd-row", "odd", Place("a.csv", line=9), fix="special advice")
    assert [(code, len(found)) for code, _, found in report.grouped()] == [("bad-row", 2), ("odd-row", 1), ("note", 1)]
    assert report.counts["bad-row"] == 5 and not report.ok
    assert report.warnings[0].fix == "special advice"


def test_the_json_holds_code_severity_path_line_message_fix():
    report = DataReport("data", codes=CODES)
    report.add("bad-row", "row 3", Place("a.csv", line=3))
    found = json.loads(report.to_json())
    assert found["findings"] == [
        {"code": "bad-row", "severity": "error", "message": "row 3", "fix": "mend it", "path": "a.csv", "line": 3}
    ]
    assert found["ok"] is False


def test_a_code_that_was_not_declared_is_a_bug():
    with pytest.raises(KeyError):
        DataReport("data", codes=CODES).add("undeclared", "x")


def test_a_policy_raises_or_says_what_to_do():
    with pytest.raises(DataError, match=r"row 3") as caught:
        Policy(CODES).meet("bad-row", "row 3", Place("a.csv", line=3))
    assert (
        caught.value.code == "bad-row"
        and caught.value.where == "a.csv:3"
        and caught.value.try_.startswith("mend it; or")
    )
    assert Policy(CODES, {"bad-row": "drop"}).meet("bad-row", "row 3", Place()) == "drop"
    assert Policy(CODES)["odd-row"] == "keep"


def test_a_policy_that_the_fix_names_is_not_named_again():
    fix = "mend it, or policy={'bad-row': 'drop'}"
    with pytest.raises(DataError) as caught:
        Policy(CODES).meet("bad-row", "row 3", Place("a.csv", line=3), fix)
    assert caught.value.try_ == fix


def test_one_policy_can_be_chosen_for_every_code_that_honours_it():
    policy = Policy(CODES, "drop")
    assert (policy["bad-row"], policy["odd-row"]) == ("drop", "keep")
    with pytest.raises(UsageError, match="no policy 'forget'"):
        Policy(CODES, "forget")


def test_one_policy_for_all_leaves_alone_what_is_repaired_anyway():
    codes = {**CODES, "clipped": Code(Severity.WARN, "is clipped", "nothing", "repair", ("drop",))}
    assert Policy(codes, "drop")["clipped"] == "repair"


def test_a_report_prints_as_a_person_reads_it():
    report = DataReport("data", format="rows", codes=CODES, understood={"rows": 12000})
    report.add("bad-row", "row 3 is bad", Place("a.csv", line=3))
    text = str(report)
    for part in (
        "data  rows",
        "12,000",
        "error bad-row ×1: a row is bad",
        "a.csv:3: row 3 is bad",
        "try: mend it",
        "not fit: 1 error",
    ):
        assert part in text


def test_all_faults_of_a_policy_are_told_at_once():
    with pytest.raises(UsageError) as caught:
        Policy(CODES, {"bad-rwo": "drop", "odd-row": "raise"})
    assert "did you mean 'bad-row'" in str(caught.value) and "'odd-row' can be keep" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place("a.txt", line=3), "a.txt:3"),
        (Place("a.npz", field="x"), "a.npz, field 'x'"),
        (Place("a.json", offset=12), "a.json, byte 12"),
        (Place(index=4), "sample 4"),
        (Place(), "unknown place"),
    ],
)
def test_a_place_reads_like_a_place(place, text):
    assert str(place) == text
