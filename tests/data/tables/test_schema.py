# SPDX-License-Identifier: Apache-2.0
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tables.coercion import coerced, targets
from fewbit.data.tables.projection import field
from fewbit.data.tables.schema import COLUMNS, Schema

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
rows = st.lists(
    st.dictionaries(st.sampled_from("abc"), leaves | st.dictionaries(st.sampled_from("xy"), leaves) | st.lists(leaves))
)


def schema_of(found):
    schema = Schema()
    for line, row in enumerate(found, 1):
        schema.add(row, ("f", line, None))
    return schema


def counts(schema):
    return {name: {kind: t.count for kind, t in types.items()} for name, types in schema.columns().items()}


def test_mixed_types_are_a_union_with_counts_and_lines():
    found = [{"label": 1}] * 10
    found[2] = found[6] = {"label": "x"}
    schema = schema_of(found)
    assert schema.mixed() == ["label"] and schema.text("label") == "int 8, str 2 at lines 3, 7"


@settings(deadline=None, max_examples=60)
@given(rows=rows, seed=st.randoms(use_true_random=False))
def test_the_schema_never_depends_on_the_order_of_rows(rows, seed):
    shuffled = list(rows)
    seed.shuffle(shuffled)
    assert counts(schema_of(rows)) == counts(schema_of(shuffled))
    assert sorted(schema_of(rows).mixed()) == sorted(schema_of(shuffled).mixed())


def test_missing_keys_are_counted():
    schema = schema_of([{"a": 1, "b": {"c": 1}}, {"a": 2, "b": {}}, {"a": None}])
    assert schema.missing("b") == 1 and schema.missing("b.c") == 1 and schema.missing("a") == 0
    assert schema.text("a") == "int 2, null 1 at line 3"


def test_nested_fields_have_dotted_names():
    assert counts(schema_of([{"a": {"b": {"c": 1}}, "l": [1, "x"], "m": [{"r": 1}]}])) == {
        "a": {"object": 1},
        "a.b": {"object": 1},
        "a.b.c": {"int": 1},
        "l": {"list[int|str]": 1},
        "m": {"list[object]": 1},
    }


def test_numbers_go_together_and_null_goes_with_everything():
    assert schema_of([{"a": 1}, {"a": 1.5}, {"a": None}]).mixed() == []
    assert schema_of([{"a": 1}, {"a": True}]).mixed() == ["a"]


def test_keys_used_as_data_do_not_fill_the_memory():
    schema = schema_of({f"key{i}": i} for i in range(10_000))
    assert len(schema.columns()) == COLUMNS and schema.overflow > 0 and schema.rows == 10_000


def test_coercion_is_decided_by_the_whole_column():
    for found in ([{"a": 1}, {"a": "x"}], [{"a": "x"}, {"a": 1}]):
        chosen = targets(schema_of(found))
        assert {coerced(dict(row), chosen)["a"] for row in found} == {"1", "x"}


def test_dotted_path_reaches_into_lists_and_objects():
    row = {"messages": [{"content": "hi"}, {"content": "ho"}], "a.b": 1}
    assert field(row, "messages.0.content") == "hi" and field(row, "messages.-1.content") == "ho"
    assert field(row, "messages.9.content") is None and field(row, "a.b") == 1 and field(row, "messages.x") is None
    assert field(row, "messages." + "9" * 5000) is None
