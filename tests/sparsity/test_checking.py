# SPDX-License-Identifier: Apache-2.0
"""Columns that the user names are those that are checked."""

import json

import pytest

from fewbit.data.findings import Progress
from fewbit.errors import DataError
from fewbit.record import Record
from fewbit.sparsity.checking import check_data
from fewbit.sparsity.choosing import find_use_case


@pytest.fixture
def rows(tmp_path):
    moods = ("bad", "good", "so so")
    lines = [json.dumps({"said": f"w{i} w11", "mood": moods[i % 3]}) for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return tmp_path / "rows.jsonl"


def checked(rows, **options):
    case = find_use_case("text_classification")
    check_data(rows, case, None, options=options, record=Record("check"), progress=Progress())


def test_a_label_of_another_name_is_found_where_it_is_said(rows):
    with pytest.raises(DataError, match="the columns are said, mood") as error:
        checked(rows)
    assert "--option 'columns={text: …, label: …}'" in error.value.try_
    checked(rows, columns={"text": "said", "label": "mood"})
    checked(rows, reading={"label": "mood"})
    with pytest.raises(DataError, match="no-label"):
        checked(rows, columns={"text": "said", "label": "moods"})
