# SPDX-License-Identifier: Apache-2.0
"""What the stage `prune` can be told, and what is refused when it is."""

from __future__ import annotations

import pytest

from fewbit import UsageError
from fewbit.sparsity.pruning.settings import Settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "without a share"),
        ({"sparsity": 1.5}, "a share of 1.5"),
        ({"sparsity": True}, "True"),
        ({"sparsity": 0.5, "structure": "some"}, "the pattern 'some'"),
        ({"sparsity": 0.3, "structure": "2:4"}, "2:4 with a share of 0.3"),
        ({"sparsity": 0.5, "algorithm": "gptq"}, "stage 'round'"),
        ({"sparsity": 0.5, "algorithm": "sparse_gtp"}, "sparse_gtp"),
        ({"sparsity": 0.5, "algorithm": "wanda", "parameters": {"dampening": 1}}, "no parameter 'dampening'"),
        ({"sparsity": 0.5, "parameters": {"damping": 1}}, "parameters without an algorithm"),
        ({"sparsity": 0.5, "scope": "model"}, "'model'"),
        ({"sparsity": 0.5, "budget": "owl"}, "'owl'"),
        ({"sparsity": 0.5, "targets": 3}, "3"),
        ({"sparsity": 0.5, "quantize": "int5"}, "int5"),
        ({"sparsity": 0.5, "group_size": 32}, "without `quantize`"),
        ({"structure": "2:4", "budget": "sensitivity"}, "sensitivity with 2:4"),
        ({"structure": "2:4", "scope": "global"}, "global with 2:4"),
        ({"sparsity": 0.5, "scope": "global", "algorithm": "wanda"}, "global with wanda"),
        ({"sparsity": 0.5, "scope": "global", "budget": "sensitivity"}, "sensitivity with the scope global"),
    ],
)
def test_what_cannot_be(given, words):
    with pytest.raises(UsageError) as error:
        Settings(**given)
    assert words in str(error.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(UsageError) as error:
        Settings(2.0, scope="model", budget="owl", group_size=3)
    assert "4 faults" in str(error.value)


def test_lists_become_tuples_and_n_of_m_has_its_share():
    made = Settings(structure="1:4", targets=["a", "re:b.*"], ignore="c")
    assert made.targets == ("a", "re:b.*") and made.ignore == ("c",) and made.pattern.share == 0.75
