# SPDX-License-Identifier: Apache-2.0
"""The observer a scheme asks for, and what is said of one that cannot be."""

import pytest

from fewbit import QuantizationSpec, UsageError, registry
from fewbit.engine.observing import range_observer
from fewbit.observers._base import RangeObserver, observer_class


def spec(observer, **parameters):
    return QuantizationSpec("int8", observer_cls=observer, observer_parameters=parameters or None)


def test_it_has_the_parameters_that_were_given():
    assert range_observer(QuantizationSpec("int8")).name == "min_max"
    made = range_observer(spec("percentile", percentile=99, bins=512))
    assert made.parameters == {"percentile": 99, "bins": 512}
    assert range_observer(spec("percentile")) is not range_observer(spec("percentile"))


@pytest.mark.parametrize(
    ("observer", "parameters", "field", "words"),
    [
        ("percentile", {"percentile": "99.9"}, "observer_parameters.percentile", "a number, such as 99.99"),
        ("percentile", {"percentile": True}, "observer_parameters.percentile", "a number, such as 99.99"),
        ("mse", {"bins": 2048.5}, "observer_parameters.bins", "a whole number, such as 2048"),
        ("mse", {"bins": [2048]}, "observer_parameters.bins", "a whole number, such as 2048"),
        ("histogram", {"bins": 2}, "observer_parameters.bins", "at least 4"),
        ("histogram", {"mass": 1.5}, "observer_parameters.mass", "below 1"),
        ("percentile", {"percentile": 0}, "observer_parameters.percentile", "above 0"),
        ("entropy", {"candidates": 3}, "observer_parameters.candidates", "at least 4"),
        ("moving_average", {"averaging_constant": 2.0}, "observer_parameters.averaging_constant", "at most 1"),
        ("percentile", {"percentil": 3}, "observer_parameters", "'percentile'"),
        ("moments", {}, "observer_cls", "mse"),
    ],
)
def test_what_is_wrong_is_said_with_the_tensor_and_the_field(observer, parameters, field, words):
    for where, expected in ((None, field), ("layers.0.fc1.weight", f"layers.0.fc1.weight: {field}")):
        with pytest.raises(UsageError) as error:
            range_observer(spec(observer, **parameters), where)
        assert error.value.where == expected and words in error.value.expected


def test_the_observers_that_would_do_are_those_there_are():
    ranges = [n for n in registry.names("observers") if issubclass(observer_class(n), RangeObserver)]
    with pytest.raises(UsageError) as error:
        range_observer(spec("moments"))
    assert error.value.expected == f"one of {', '.join(ranges)}"
