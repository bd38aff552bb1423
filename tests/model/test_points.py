# SPDX-License-Identifier: Apache-2.0
from math import prod

import pytest

from fewbit.model.ops import CONV, EMBEDDING, LINEAR
from fewbit.model.points import Point, Role


def test_names_of_tensors_and_activations():
    assert Point("a.b", Role.weight, LINEAR, "weight").name == "a.b.weight"
    assert Point("", Role.weight, LINEAR, "weight").name == "weight", "the model itself is the layer"
    assert Point("a.b", Role.input, LINEAR).name == "a.b:input"


@pytest.mark.parametrize("shape", [(), (4,), (4, 6), (3, 4, 6), (4, 0)])
def test_elements(shape):
    assert Point("a", Role.weight, LINEAR, "weight", shape).elements == (prod(shape) if shape else 0)


def test_points_can_be_keys_and_differ_by_role():
    one, two = Point("a", Role.input, CONV), Point("a", Role.output, CONV)
    assert len({one, two, Point("a", Role.input, CONV)}) == 2


def test_where_an_operation_finds_its_features():
    assert (LINEAR.features, CONV.features, EMBEDDING.features) == (-1, 1, None)
