# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.errors import DataError, MissingLibraryError, UsageError, escape, plural, raise_all, render, require


def test_one_message_in_two_interfaces():
    error = UsageError(
        "the preset 'q4_k_m' is a GGUF type", code="preset-format", param="preset",
        expected="{format=gguf}", hint="{preset=q4_k_m} {format=gguf}, see {fewbit.plan}",
    )  # fmt: skip
    assert error.text("cli").splitlines() == [
        "the preset 'q4_k_m' is a GGUF type [preset-format]",
        "  where:    --preset",
        "  expected: --format gguf",
        "  try:      --preset q4_k_m --format gguf, see fewbit plan",
    ]
    assert str(error).splitlines()[1:] == [
        "  where:    preset=",
        '  expected: format="gguf"',
        '  try:      preset="q4_k_m" format="gguf", see fewbit.plan()',
    ]


def test_numbers_are_not_quoted():
    assert render("{samples=64}", "python") == "samples=64"


def test_text_from_outside_is_escaped():
    hostile = "a\x1b[31m\u202e\ud800\x00\n"
    error = DataError(f"bad name {hostile}", code="x", where=hostile, hint="none")
    for text in (str(error), error.text("cli"), error.to_dict()["where"]):
        assert "\x1b" not in text and "\u202e" not in text and "\ud800" not in text and "\x00" not in text
    assert escape(hostile) == r"a\x1b[31m\u202e\ud800\x00\n"


def test_several_errors_are_numbered():
    first, second = (UsageError(name, code=name, hint="h") for name in "ab")
    with pytest.raises(UsageError) as caught:
        raise_all([first, second])
    assert "1. a [a]" in str(caught.value) and "2. b [b]" in str(caught.value)
    assert [part["code"] for part in caught.value.to_dict()["errors"]] == ["a", "b"]
    with pytest.raises(UsageError, match=r"a \[a\]"):
        raise_all([first])
    assert raise_all([]) is None


def test_a_missing_library_names_the_extra():
    with pytest.raises(MissingLibraryError, match=r"fewbit\[onnx\]") as caught:
        require("no_such_library_here", extra="onnx", purpose="ONNX models")
    assert caught.value.exit_code == 2 and isinstance(caught.value, ImportError)


def test_a_library_whose_import_fails_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingLibraryError, match="its import fails"):
        require("broken_library", extra="onnx", purpose="ONNX models")


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "image", "1 image"),
        (2, "class", "2 classes"),
        (0, "entry", "0 entries"),
        (3, "path", "3 paths"),
        (2, "box", "2 boxes"),
    ],
)
def test_counts_agree_with_nouns(count, noun, text):
    assert plural(count, noun) == text


def test_errors_travel_between_processes():
    import pickle

    from fewbit.data.types import Issue, IssueType, Location, SampleError, Severity

    kind = IssueType("x", Severity.ERROR, "bad thing", "mend it")
    for error in (
        UsageError("wrong", code="c", param="samples", hint="{samples=1}"),
        SampleError(Issue(kind, "broken", Location("a.csv", line=3))),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and again.code == error.code
