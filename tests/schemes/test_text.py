# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.errors import UsageError
from fewbit.schemes.text import canonical, read_json, read_yaml, write_json, write_yaml

VALUES = {"a": {"b": [1, 2.5, None, True, "x"]}, "0": "no", "ü": "*.fc1", "e": 1e-7}


def test_both_ways():
    assert read_json(write_json(VALUES)) == VALUES == read_yaml(write_yaml(VALUES))
    assert list(read_yaml(write_yaml(VALUES))) == list(VALUES), "the order of the fields stays"
    assert read_json(b'{"a": 1}') == read_yaml(b"a: 1") == {"a": 1}


@pytest.mark.parametrize(
    ("read", "content", "words"),
    [
        (read_json, "{", "not JSON"),
        (read_json, "[1]", "holds a list"),
        (read_json, '{"a": 1, "a": 2}', "'a' is there twice"),
        (read_json, '{"a": NaN}', "NaN"),
        (read_json, b"\xff", "not JSON"),
        (read_json, "[" * 100_000, "not JSON"),
        (read_yaml, "a: [", "not plain YAML"),
        (read_yaml, "- 1", "holds a list"),
        (read_yaml, "a: 1\na: 2", "'a' is there twice"),
        (read_yaml, "a: {b: 1, b: 2}", "'b' is there twice"),
        (read_yaml, "a: !!python/object/apply:os.getcwd []", "not plain YAML"),
        (read_yaml, "a: &x [*x]", "refers to itself"),
        (read_yaml, "", "holds a NoneType"),
        (read_yaml, b"\xff\xfe\xff", "not plain YAML"),
    ],
)
def test_what_is_refused(read, content, words):
    with pytest.raises(UsageError, match=words):
        read(content)


def test_a_few_lines_of_yaml_cannot_fill_the_memory():
    lines = ["a0: &a0 [1, 2]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(UsageError, match="more than any configuration"):
        read_yaml("\n".join(lines))


def test_anchors_and_merges_of_plain_values_are_fine():
    assert read_yaml("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}")["d"] == {"b": 3, "c": 2}


def test_equal_values_have_one_canonical_text():
    assert canonical({"b": 1.0, "a": [2]}) == canonical({"a": [2.0], "b": 1}) == b'{"a":[2],"b":1}'
    assert canonical({"a": 1.5}) != canonical({"a": 1})
