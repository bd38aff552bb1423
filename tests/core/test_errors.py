# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit import errors


def test_an_error_carries_what_where_expected_and_try():
    error = errors.DataError("label 7", code="class-unknown", where="a.txt:3", expected="0 to 4", try_="fix the row")
    assert error.to_dict() == {"what": "label 7", "where": "a.txt:3", "expected": "0 to 4", "try": "fix the row"}
    assert error.code == "class-unknown"
    for part in ("label 7", "a.txt:3", "0 to 4", "fix the row"):
        assert part in str(error)


def test_parts_that_are_not_known_are_left_out_of_the_text():
    assert str(errors.UsageError("no such thing")) == "no such thing"


def test_every_error_has_the_one_base_and_an_exit_code():
    for kind in (errors.UsageError, errors.DataError, errors.MissingLibrary):
        assert issubclass(kind, errors.FewbitError)
    assert (errors.UsageError.exit_code, errors.DataError.exit_code) == (2, 1)


def test_a_missing_library_names_the_extra():
    with pytest.raises(errors.MissingLibrary, match=r"pip install 'fewbit\[hf\]'"):
        errors.require("no_such_library_at_all", extra="hf", purpose="reading")


def test_nearest_puts_close_names_first_and_lists_the_rest():
    text = errors.nearest("imagefolder", ["image_folder", "npz"])
    assert text.startswith("did you mean 'image_folder'?") and "npz" in text
    assert errors.nearest("zzz", []) == "Known: nothing"
