# SPDX-License-Identifier: Apache-2.0
"""Values of options: what cannot be meant is a usage error, in Python as on the command line."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.options import check, option, parse

INF, NAN = float("inf"), float("nan")
WRONG = [
    ("samples", INF), ("samples", -INF), ("samples", NAN), ("samples", 2.5), ("samples", 0), ("samples", True),
    ("seed", INF), ("max_length", NAN), ("epochs", INF), ("lr", NAN), ("sparsity", INF),
    ("image_size", (0, -3)), ("image_size", (0, 224)), ("image_size", (224, 2.5)), ("image_size", (None, None)),
    ("image_size", (True, 224)), ("image_size", ("224", 224)), ("image_size", (NAN, 224)), ("image_size", 0),
    ("image_size", -224), ("image_size", (224, 224, 3)),
    ("std", NAN), ("std", 0), ("std", -1), ("std", (0.5, NAN, 0.5)), ("std", (0.5, 0, 0.5)), ("std", INF), ("std", ()),
    ("mean", NAN), ("mean", (0.5, 0.5)), ("mean", (INF, 0, 0)), ("mean", object()), ("mean", np.array(0.5)),
]  # fmt: skip
WRONG_TEXTS = [
    ("samples", "inf"), ("samples", "1e3"), ("epochs", "inf"), ("epochs", "nan"), ("image_size", "0x224"),
    ("image_size", "00"), ("image_size", "x"), ("image_size", "-3x4"), ("std", "nan"), ("std", "0"), ("std", "1,inf,1"),
    ("mean", "nan"), ("mean", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_cannot_be_meant_is_a_usage_error(name, value):
    with pytest.raises(UsageError) as error:
        check(option(name), value)
    assert error.value.code == "option-value" and error.value.param == name


@pytest.mark.parametrize(("name", "text"), WRONG_TEXTS)
def test_the_same_on_the_command_line(name, text):
    with pytest.raises(UsageError) as error:
        parse(option(name), [text])
    assert error.value.code == "option-value" and error.value.param == name


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("samples", 64.0, 64), ("epochs", 0.5, 0.5), ("image_size", (48, None), (48, None)), ("mean", 0, (0.0,)),
        ("image_size", [480, 640], (480, 640)), ("std", np.array([1, 2, 3]), (1.0, 2.0, 3.0)), ("mean", -1.5, (-1.5,)),
    ],
)  # fmt: skip
def test_what_can_be_meant(name, value, result):
    checked = check(option(name), value)
    assert checked == result and type(checked) is type(result)
