# SPDX-License-Identifier: Apache-2.0
"""Every backend the registry lists keeps the contract of `_base`."""

import inspect
import subprocess
import sys

import pytest

from fewbit import registry
from fewbit.model.view import ModelView


@pytest.mark.parametrize("name", registry.names("backends"))
def test_a_member_has_the_two_functions_and_a_summary(name):
    member = registry.get("backends", name)
    assert list(inspect.signature(member.accepts).parameters) == ["model"]
    assert list(inspect.signature(member.view).parameters) == ["model"]
    assert registry.summary("backends", name)


@pytest.mark.parametrize("name", registry.names("backends"))
@pytest.mark.parametrize("model", [None, 3, "model.xyz", object(), {"weight": 1}])
def test_nobody_takes_what_is_no_model(name, model):
    assert not registry.get("backends", name).accepts(model)


def test_asking_imports_no_framework():
    asks = "registry.get('backends', 'torch_eager').accepts(3)"
    code = f"import sys; from fewbit import registry; {asks}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_eager_view_has_every_verb_of_the_protocol():
    from fewbit.backends.eager.view import EagerView

    for name, verb in inspect.getmembers(ModelView, inspect.isfunction):
        if not name.startswith("_"):
            ours = inspect.signature(getattr(EagerView, name)).parameters
            assert list(ours) == list(inspect.signature(verb).parameters), name
    assert EagerView.can <= {"structure", "rescale", "prune"}
