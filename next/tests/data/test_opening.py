# SPDX-License-Identifier: Apache-2.0
"""Reports and their verdict, codes in `on_error`, choice of the format, and what is said about wrong names."""

import io
import re
import shutil
import zipfile
from pathlib import Path

import pytest

import fewbit
from fewbit import registry
from fewbit.data.issues import issue_types
from fewbit.data.opening import choose_format, open_source, scan_source
from fewbit.data.report_text import verdict_line
from fewbit.data.types import DataReport, Detection, Format, Issue, IssueType, Location, Severity
from fewbit.errors import DataError, UsageError

BROKEN = IssueType(
    "new-code", Severity.ERROR, "broken", "repair it", "raise", ("drop",), "leaves it out", aliases=("old-code",)
)
ODD = IssueType("odd", Severity.WARNING, "odd sample", "look at it")
NOTE = IssueType("note", Severity.NOTE, "worth knowing", "nothing to do")


# Actions and aliases.


@pytest.mark.parametrize(
    ("on_error", "action"),
    [
        (None, "raise"), ("drop", "drop"), ("repair", "raise"), ({"*": "repair", "**": "drop"}, "drop"),
        ({"new-code": "keep", "*": "drop"}, "keep"), ({"old-code": "drop"}, "drop"), ({"other": "drop"}, "raise"),
    ],
)  # fmt: skip
def test_the_users_choice_applies_where_the_issue_allows_it(on_error, action):
    assert DataReport(on_error=on_error).action(BROKEN) == action


def test_fix_drops_only_what_the_page_of_issues_says():
    suspicious = IssueType("dull", Severity.WARNING, "dull sample", "look at it", "keep", ("drop",))
    assert DataReport(on_error={"*": "repair", "**": "drop"}).action(suspicious) == "keep"


def test_a_word_for_all_is_about_damaged_samples_only():
    suspicious = IssueType("dull", Severity.WARNING, "dull sample", "look at it", "keep", ("drop",))
    assert DataReport(on_error="drop").action(suspicious) == "keep"
    assert DataReport(on_error={"dull": "drop"}).action(suspicious) == "drop"


def test_old_codes_are_accepted_and_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("fewbit.data.dataset.ISSUES", (BROKEN,))
    from fewbit.data.issues import issues_page

    (tmp_path / "a.txt").write_text("text\n")
    assert open_source(tmp_path / "a.txt", on_error={"old-code": "drop"})
    assert "`new-code` (`old-code`)" in issues_page()
    with pytest.raises(UsageError, match="old-code"):
        open_source(tmp_path / "a.txt", on_error={"old-cod": "drop"})


@pytest.mark.parametrize(
    ("on_error", "allowed"),
    [
        ({"array-corrupt": "repair"}, "raise, drop"), ({"row-short": "keep"}, "raise, drop, repair"),
        ({"link-broken": "drop"}, "keep, raise"), ({"*": "dorp"}, "raise, drop, repair, keep"),
    ],
)  # fmt: skip
def test_an_action_that_an_issue_does_not_allow_is_refused(tmp_path, on_error, allowed):
    (tmp_path / "a.csv").write_text("text,size\na,1\n")
    with pytest.raises(UsageError) as error:
        open_source(tmp_path / "a.csv", on_error=on_error)
    assert error.value.code == "action-unknown" and error.value.expected == allowed
    assert open_source(tmp_path / "a.csv", on_error={"row-short": "repair", "link-broken": "raise", "*": "drop"})


def test_hints_name_only_actions_that_are_allowed():
    kinds = [kind for kinds in issue_types().values() for kind in kinds]
    named = [(kind, action) for kind in kinds for action in re.findall(r"\{on_error=(?:[\w-]+=)?(\w+)\}", kind.hint)]
    assert len(named) > 8 and not [kind.code for kind, action in named if action not in kind.choices]


@pytest.mark.parametrize("name", ["image_folder", "path_list", "yolo"])
def test_copies_in_a_later_split_can_be_left_out(tmp_path, name):
    member = registry.get("data_formats", name)
    path = member.example(tmp_path / "data")
    files = [file for file in sorted(path.rglob("*")) if file.suffix in (".png", ".jpg", ".wav")]
    train, val = (next(file for file in files if split in str(file.relative_to(path))) for split in ("train", "val"))
    renamed = val.with_suffix(train.suffix)  # its suffix must still be true
    val.unlink()
    shutil.copy(train, renamed)
    if name == "path_list":
        lists = path / "val.txt"
        lists.write_text(lists.read_text().replace(val.name, renamed.name))
    source, report = scan_source(path, data_format=name, depth="full")
    assert report.counts["duplicate-across-splits"] == 1
    fewer, _ = scan_source(path, data_format=name, depth="full", on_error={"duplicate-across-splits": "drop"})
    assert len(fewer) == len(source) - 1


def test_copies_of_clips_in_a_later_split_can_be_left_out(tmp_path):
    for split in ("train", "val"):
        registry.get("data_formats", "audio_folder").example(tmp_path / split)
    source, report = scan_source(tmp_path, depth="full")
    fewer, _ = scan_source(tmp_path, depth="full", on_error={"duplicate-across-splits": "drop"})
    assert 2 * report.counts["duplicate-across-splits"] == 2 * len(fewer) == len(source) > 0


# Verdict.


def report_of(kind, locations, unit="sample", samples=100):
    report = DataReport(complete=True, facts={"samples": samples}, unit=unit)
    for location in locations:
        report.add(kind, "strange", location)
    return report


@pytest.mark.parametrize(
    ("kind", "locations", "unit", "ok"),
    [
        (ODD, [Location(f"{n}.png") for n in range(9)], "image", True),
        (ODD, [Location(f"{n}.png") for n in range(10)], "image", False),
        (ODD, [Location("labels/1.txt", line=n) for n in range(50)], "image", True),  # one image
        (ODD, [Location("rows.csv", line=n) for n in range(10)], "row", False),
        (ODD, [Location(index=n) for n in range(10)], "sample", False),
        (ODD, [Location()] * 50, "image", True),  # about the dataset as a whole
        (NOTE, [Location(f"{n}.png") for n in range(100)], "image", True),
        (BROKEN, [Location("1.png")], "image", False),
    ],
)
def test_the_verdict_follows_severity_and_share(kind, locations, unit, ok):
    report = report_of(kind, locations, unit)
    assert report.ok == ok and verdict_line(report).startswith("OK" if ok else "NOT READY")


def test_the_verdict_counts_samples_not_warnings_and_says_so():
    report = DataReport(complete=True, facts={"samples": 100})
    report.add(ODD, "all of them", Location("classes.txt"), samples=60)
    assert verdict_line(report) == "NOT READY  1 warning in 100 samples; warnings concern 60 samples"
    assert not DataReport().ok  # nothing was read


def test_counts_stay_exact_beyond_the_stored_locations(monkeypatch):
    monkeypatch.setattr("fewbit.data.types.MOST_ISSUES", 5)
    report = report_of(ODD, [Location(f"{n}.png") for n in range(20)])
    assert report.counts["odd"] == report.warned_samples == 20 and len(report.issues) == 5
    assert repr(report) == "DataReport(unknown, 20 warnings)"


def test_messages_show_no_addresses():
    issue = Issue(BROKEN, "cannot identify image file <_io.BytesIO object at 0x7f12ab34cd56>")
    assert str(issue) == "cannot identify image file _io.BytesIO"


# Formats.


def fake_formats(monkeypatch, **detections):
    formats = {
        name: Format(name, name, "", (), lambda files, value=value: Detection(value, "a reason"), None, None)
        for name, value in detections.items()
    }
    monkeypatch.setattr(registry, "members", lambda kind: formats)


@pytest.mark.parametrize(
    ("detections", "outcome"),
    [
        ({"a": 0.9, "b": 0.6}, "a"), ({"a": 0.9, "b": 0.8}, "format-ambiguous"), ({"a": 0.5}, "format-unknown"),
        ({}, "format-unknown"),
    ],
)  # fmt: skip
def test_the_surest_format_wins_and_doubt_is_an_error(tmp_path, monkeypatch, detections, outcome):
    fake_formats(monkeypatch, **detections)
    from fewbit.data.files import Folder

    (tmp_path / "x").write_text("x")
    if outcome in detections:
        assert choose_format(Folder(tmp_path))[0].name == outcome
        return
    with pytest.raises(DataError) as caught:
        choose_format(Folder(tmp_path))
    assert caught.value.code == outcome
    assert all(f"{name} (a reason)" in caught.value.expected for name in detections)


@pytest.mark.parametrize("name", registry.names("data_formats"))
def test_every_format_asks_for_suffixes_that_its_example_has(name, tmp_path):
    member = registry.get("data_formats", name)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in member.suffixes)


def test_a_format_is_not_asked_about_files_it_cannot_read(tmp_path, monkeypatch):
    def never(files):
        raise AssertionError("asked")

    formats = {"a": Format("a", "a", "", (), never, None, None, suffixes=(".csv",))}
    monkeypatch.setattr(registry, "members", lambda kind: formats)
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match="recognizes"):
        scan_source(tmp_path)
    (tmp_path / "rows.CSV.gz").write_text("x")
    with pytest.raises(AssertionError):
        scan_source(tmp_path)


def test_an_archive_of_archives_is_answered(tmp_path):
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(tmp_path / "inner.zip", "inner.zip")
    with pytest.raises(DataError, match=r"holds only archives: inner\.zip") as caught:
        open_source(tmp_path / "outer.zip")
    assert caught.value.code == "archive-nested" and "unpack" in caught.value.hint


# What is not there, and what is no data.


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("imdb", "--data hf:imdb"), ("https:/host/a.zip", "https://host/a.zip"), ("s3:/b/x", "s3://b/x"),
        ("photso", "check the spelling"), ("~nobody-here/x", "check the spelling"), ("", "check the spelling"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_answered_with_what_to_type(tmp_path, monkeypatch, data, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises((DataError, UsageError), match=r"no file or folder|one slash") as caught:
        fewbit.check_dataset(data)
    assert hint in caught.value.text("cli") and ("photos" in caught.value.expected or data != "photso")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, "data-none"), (io.BytesIO(b"x"), "object-unknown"), (7, "object-unknown"), (dict, "object-unknown"),
        (["a.jpg", "b/c.jpg"], "data-paths"), ([Path("a")], "data-paths"), (["s3://bucket/x"], "data-paths"),
    ],
)  # fmt: skip
def test_what_holds_no_samples_is_a_typed_error(data, code):
    with pytest.raises((DataError, UsageError)) as caught:
        fewbit.check_dataset(data)
    assert caught.value.code == code and " at 0x" not in str(caught.value)


def test_a_list_of_strings_is_read_as_texts_with_a_note():
    report = fewbit.check_dataset(["It rains.", "The sun shines."])
    assert report.ok and [issue.message for issue in report.notes] == ["read as 2 texts, one sample each"]


def test_a_folder_of_label_files_is_not_taken_for_documents(tmp_path):
    from fewbit.data.formats import yolo

    yolo.example(tmp_path / "set")
    for inner in ("labels", "labels/train"):
        with pytest.raises(DataError) as caught:
            open_source(str(tmp_path / "set" / inner))
        assert caught.value.code == "labels-alone" and f"give {tmp_path / 'set'};" in str(caught.value)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("A label is a piece of paper.")
    (tmp_path / "labels" / "b.txt").write_text("So is a ticket.")
    assert len(open_source(str(tmp_path / "labels"))[0]) == 2
