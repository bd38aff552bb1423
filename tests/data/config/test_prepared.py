# SPDX-License-Identifier: Apache-2.0
"""From a configuration to samples: splits that never overlap, what is left out and said, the user's own code."""

import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.config import generate_dataset_config
from fewbit.data.preparing.splitting import sides
from fewbit.errors import DataError, UsageError


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def texts(dataset):
    return [sample["text"] for sample in dataset]


def opened(path, split="train", steps=(), **custom):
    return generate_dataset_config(path, list(steps), {"tokenizer": "bytes", **custom}).open(split)


def test_validation_is_never_the_training_split(tmp_path):
    """Defect 2: the grammar set gave its training file for validation."""
    path = write(tmp_path / "a.jsonl", [{"input": f"He go {n}.", "target": f"He goes {n}."} for n in range(50)])
    made = generate_dataset_config("grammar", [], {"path": path})
    train, judged = ({sample["prompt"] for sample in made.open(split)} for split in ("train", "validation"))
    assert len(train) == 45 and len(judged) == 5 and not train & judged


def test_the_files_own_split_comes_first(tmp_path):
    write(tmp_path / "train.jsonl", [{"text": f"t{n}"} for n in range(6)])
    write(tmp_path / "valid.jsonl", [{"text": "v"}])
    write(tmp_path / "test.jsonl", [{"text": "x"}])
    assert len(opened(str(tmp_path))) == 6
    assert texts(opened(str(tmp_path), "validation")) == ["v"] == texts(opened(str(tmp_path), "val"))
    assert texts(opened(str(tmp_path), "test")) == ["x"]
    assert texts(opened(str(tmp_path), "validation", validation_split="test")) == ["x"]
    with pytest.raises(UsageError, match="no split 'holdout'"):
        opened(str(tmp_path), "holdout")


def test_a_test_split_is_nobodys_validation(tmp_path):
    write(tmp_path / "train.jsonl", [{"text": f"t{n}"} for n in range(20)])
    write(tmp_path / "test.jsonl", [{"text": f"x{n}"} for n in range(20)])
    judged = texts(opened(str(tmp_path), "validation"))
    assert len(judged) == 2 and all(text.startswith("t") for text in judged)
    assert not set(judged) & set(texts(opened(str(tmp_path))))


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=60).filter(lambda found: len(set(found)) > 1),
    st.floats(0.01, 0.99),
)
def test_equal_rows_are_on_one_side_and_nothing_is_lost(values, ratio):
    import numpy as np

    found = sides(np.array(values, np.uint64), ratio)
    one = {value for value, judged in zip(values, found) if judged}
    other = {value for value, judged in zip(values, found) if not judged}
    assert one and other and not one & other


def test_repeated_rows_stay_together_whatever_their_order(tmp_path):
    rows = [{"text": f"row {n % 10}"} for n in range(100)]
    path, turned = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows[::-1])
    train, judged = set(texts(opened(path))), set(texts(opened(path, "validation")))
    assert not train & judged and len(train | judged) == 10
    assert set(texts(opened(turned, "validation"))) == judged
    assert set(texts(opened(path, "validation", seed=5))) != judged


def test_a_stream_is_cut_too():
    def rows():
        return ({"text": f"row {n}"} for n in range(200))

    train, judged = (set(texts(opened(rows, split, validation_ratio=0.2))) for split in ("train", "validation"))
    assert len(train | judged) == 200 and not train & judged and 20 < len(judged) < 60


def test_no_validation_is_said(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}])
    assert len(opened(path, validation_ratio=0)) == 2
    with pytest.raises(UsageError, match="validation_ratio=0"):
        opened(path, "validation", validation_ratio=0)


def test_rows_that_make_no_sense_are_counted_with_their_place(tmp_path):
    rows = [{"question": "q", "answer": "a"}, {"question": "q", "answer": ""}, {"question": 3, "answer": "a"}]
    path = write(tmp_path / "a.jsonl", rows)
    found = generate_dataset_config("gsm8k", [], {"path": path}).open(None)
    assert len(found) == 1 and len(list(found)) == 1
    (line,) = [line for line in found.record.lines if line["what"] == "left-out"]
    assert line["count"] == 2 and "a.jsonl:2" in line["first"][0] and "a.jsonl:3" in line["first"][1]


def test_what_was_left_out_is_said_again_from_the_cache(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}, {"question": "q", "answer": ""}])
    for _ in range(2):
        found = generate_dataset_config("gsm8k", None, {"path": path, "tokenizer": "bytes"}).open(None)
        assert len(found) == 1
        assert [line["count"] for line in found.record.lines if line["what"] == "left-out"] == [1]


def test_nothing_left_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "q", "answer": ""}])
    for steps in ([], ["tokenization", "masking"]):
        with pytest.raises(DataError, match="'answer' is empty"):
            len(generate_dataset_config("gsm8k", steps, {"path": path, "tokenizer": "bytes"}).open(None))


def test_a_missing_column_is_told_with_what_there_is(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"questions": "q", "solution": "a"}])
    with pytest.raises(UsageError) as caught:
        generate_dataset_config("gsm8k", [], {"path": path}).open(None)
    assert "'question': 'questions'" in str(caught.value) and "a.jsonl:1" in str(caught.value)
    columns = {"question": "questions", "answer": "solution"}
    assert generate_dataset_config("gsm8k", [], {"path": path, "columns": columns}).open(None)[0]["answer"] == "a"


OWN = """
def shout(sample):
    return {**sample, "text": sample["text"].upper()}

def broken(sample):
    return sample.no_such_thing

def choosy(sample):
    return sample if sample["text"] != "b" else None

def odd(sample):
    return [sample]
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    return f"{tmp_path}/mine.py"


def test_the_users_own_steps(tmp_path, own):
    path = write(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}, {"text": "c"}])
    found = opened(path, None, [f"{own}:choosy", f"{own}:shout"])
    assert len(found) == 2 and texts(found) == ["A", "C"] and found[1]["text"] == "C"
    assert [line["count"] for line in found.record.lines if line["what"] == "left-out"] == [1]


def test_an_attribute_error_inside_user_code_is_told_as_it_is(tmp_path, own):
    """Defect 10: it came out as "method not present"."""
    path = write(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(DataError, match="broken raised AttributeError: 'Sample' object has no attribute") as caught:
        list(opened(path, None, [f"{own}:broken"]))
    assert "mine.py:6" in caught.value.where and "a.jsonl:1" in caught.value.where
    assert isinstance(caught.value.__cause__, AttributeError)


def test_an_error_while_the_users_file_loads_is_told_as_it_is(tmp_path):
    """Defect 10, when the file itself fails."""
    path = write(tmp_path / "a.jsonl", [{"text": "a"}])
    (tmp_path / "bad.py").write_text("import json\njson.no_such_thing\n")
    with pytest.raises(AttributeError, match="no_such_thing"):
        opened(path, None, [f"{tmp_path}/bad.py:step"])
    with pytest.raises(UsageError, match="defines no 'shot'"):
        (tmp_path / "mine.py").write_text(OWN)
        opened(path, None, [f"{tmp_path}/mine.py:shot"])


def test_a_windows_path_has_a_colon_of_its_own(tmp_path, monkeypatch):
    """Defect 10: the reference was split at the first colon."""
    path = write(tmp_path / "a.jsonl", [{"text": "a"}])
    monkeypatch.chdir(tmp_path)
    os.mkdir("C:")
    (tmp_path / "C:" / "mine.py").write_text(OWN)
    assert texts(opened(path, None, ["C:/mine.py:shout"])) == ["A"]
    with pytest.raises(UsageError, match="there is no such preset, file or folder"):
        generate_dataset_config("C:\\data\\rows.jsonl", [])


def test_a_step_that_gives_no_sample(tmp_path, own):
    path = write(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(DataError, match="odd returned"):
        list(opened(path, None, [f"{own}:odd"]))


def test_prepared_samples_go_into_another_process(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": f"{n}?", "answer": str(n)} for n in range(5)])
    (tmp_path / "same.py").write_text("def same(sample):\n    return sample\n")
    same = f"{tmp_path}/same.py:same"
    for steps in ([same], ["tokenization", "masking", "truncation", "padding"], [same, "tokenization", same]):
        found = opened(path, None, steps, max_length=100)
        back = pickle.loads(pickle.dumps(found))
        assert len(back) == 5
        assert str(back[3]) == str(found[3])


def test_steps_in_the_order_they_are_given(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": f"{n}?", "answer": str(n)} for n in range(10)])
    found = opened(path, None, ["tokenization", "masking", "truncation", "packing"], max_length=16)
    assert set(found[0]) == {"input_ids", "labels", "position_ids", "segments"}


def test_random_access_and_order_agree(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": f"row {n}"} for n in range(30)])
    for steps in ([], ["tokenization"]):
        found = opened(path, "train", steps)
        assert [str(found[n]) for n in range(len(found))] == [str(sample) for sample in found]


def test_pictures_are_not_decoded_to_be_counted(tmp_path):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    broken = tmp_path / "dog" / "4.png"
    broken.write_bytes(broken.read_bytes()[:40])
    made = generate_dataset_config(str(tmp_path))
    assert made.steps == () and len(made.open(None)) == 10
    assert len(made.open("train")) == 9 and len(made.open("validation")) == 1
    assert made.open(None)[0]["image"].shape == (8, 8, 3)
    with pytest.raises(DataError):
        made.open(None)[9]
