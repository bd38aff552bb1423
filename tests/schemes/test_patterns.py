# SPDX-License-Identifier: Apache-2.0
from itertools import permutations

import pytest

from fewbit.schemes.patterns import covers, fault_of, is_pattern, lineage, matches, most_specific


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("fc1", "fc1", True),
        ("fc1", "layers.fc1", False),
        ("*.fc1", "layers.0.fc1", True),
        ("*.fc1", "fc1", False),
        ("layers.?.fc1", "layers.1.fc1", True),
        ("layers.?.fc1", "layers.10.fc1", False),
        ("layers.[02].fc1", "layers.2.fc1", True),
        ("layers.[02].fc1", "layers.1.fc1", False),
        ("*.FC1", "layers.0.fc1", False),
        (r"re:.*\.fc[12]", "layers.0.fc2", True),
        (r"re:fc", "fc1", False),  # the whole name
        ("re:.*", "", True),
        ("*", "", True),
        ("", "", True),
        ("a[b", "a[b", True),  # an exact name, whatever characters it has
    ],
)
def test_what_matches(pattern, name, expected):
    assert matches(pattern, name) is expected


def test_the_most_specific_entry_counts_whatever_the_order():
    # From the most to the least special: exact, expressions by length, globs by literal characters.
    ranked = ["layers.0.fc1", r"re:layers\.\d+\.fc1", "re:.*fc1", "layers.*.fc1", "*.fc1", "*fc*", "*"]
    for number in range(len(ranked)):
        for order in list(permutations(ranked[number:]))[:50]:
            assert most_specific(order, "layers.0.fc1") == ranked[number]
    assert most_specific(["b*", "*c"], "bc") == most_specific(["*c", "b*"], "bc") == "*c"
    assert most_specific(["x"], "y") is None and most_specific([], "y") is None


def test_a_name_covers_what_lies_inside():
    assert list(lineage("a.b.c")) == ["a.b.c", "a.b", "a"] and list(lineage("")) == [""]
    assert covers("a.b", "a.b.c") and covers("*.b", "a.b.c.d") and covers(r"re:\w\.b", "a.b.c")
    assert not covers("a.b", "a.bc") and not covers("b", "a.b")


def test_faults_and_kinds():
    assert fault_of("re:(") and not fault_of("re:a+") and not fault_of("*.[ab]")
    assert is_pattern("*.a") and is_pattern("re:a") and is_pattern("a?") and not is_pattern("a.b")
