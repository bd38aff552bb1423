# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit.errors import UsageError
from fewbit.schemes.faults import Fault, closest, no_field, refuse


def test_one_fault_keeps_its_parts_and_several_are_numbered():
    refuse([], "x")
    one, two = Fault("a.b", "found 1", "expected 2", "try 3"), Fault("c", "found 4", "expected 5")
    with pytest.raises(UsageError) as error:
        refuse([one, one], "x")
    assert error.value.to_dict() == {"what": "found 1", "where": "a.b", "expected": "expected 2", "try": "try 3"}
    with pytest.raises(UsageError) as error:
        refuse([one, two], "the thing")
    assert str(error.value) == (
        "2 faults in the thing\n"
        "  1. a.b: found 1\n     expected: expected 2\n     try: try 3\n"
        "  2. c: found 4\n     expected: expected 5"
    )
    assert two.under("top").path == "top.c"


def test_near_names_are_few():
    many = [f"layer{i}" for i in range(5000)]
    assert (
        closest("zzz", many) == "one of layer0, layer1, layer2, layer3, layer4, layer5, layer6, layer7 … (5000 in all)"
    )
    assert closest("layr42", many).count(" or ") == 2 and closest("x", []) == "nothing, there is none"
    assert no_field("p", "grop", ["group", "x"]).expected == "'group'"
