# SPDX-License-Identifier: Apache-2.0
"""What holds for every use case, and the names that people know them by."""

import pytest
import torch

from fewbit import registry
from fewbit.errors import UsageError
from fewbit.sparsity.choosing import find_use_case, use_case_for

MEMBERS = registry.names("use_cases")

KNOWN = {
    "image_classification": "image_classification",
    "image-classification": "image_classification",
    "ic": "image_classification",
    "cv-image_classification": "image_classification",
    "object_detection": "object_detection",
    "detection": "object_detection",
    "segmentation": "segmentation",
    "image_segmentation": "segmentation",
    "nlp-question_answering": "question_answering",
    "question_answering": "question_answering",
    "qa": "question_answering",
    "nlp-named_entity_recognition": "token_classification",
    "token_classification": "token_classification",
    "ner": "token_classification",
    "sentiment_analysis": "text_classification",
    "nlp-sentiment_analysis": "text_classification",
    "text_classification": "text_classification",
    "nlp-text_classification": "text_classification",
    "nlg": "text_generation",
    "text_generation": "text_generation",
    "causal_lm": "text_generation",
    "mlm": "masked_language_modeling",
    "ir": "information_retrieval",
    "custom": "custom",
}


@pytest.mark.parametrize("said", KNOWN)
def test_every_documented_name_means_something(said):
    assert find_use_case(said).name == KNOWN[said]


@pytest.mark.parametrize("name", MEMBERS)
def test_each_says_what_it_reads_and_by_what_it_is_judged(name):
    case = find_use_case(name)
    assert case.name == name and set(case.formats) <= set(registry.names("formats"))
    assert set(case.steps or ()) <= set(registry.names("steps"))
    if case.task is None:
        assert case.metric is None and not case.metrics
        return
    task = registry.get("tasks", case.task)
    assert case.metric in case.metrics and set(case.words.values()) <= set(case.metrics)
    assert set(case.metrics.values()) <= {"max", "min"}
    if task.METRIC.BEST[0] != "loss":
        assert case.metrics[task.METRIC.BEST[0]] == task.METRIC.BEST[1]


def test_names_and_aliases_are_of_one_use_case_each():
    named = [alias for name in MEMBERS for alias in (name, *find_use_case(name).aliases)]
    assert len(named) == len(set(named))


def test_the_numbers_that_use_cases_name_are_those_that_tasks_give():
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    logits = torch.eye(6)[labels]
    given = registry.get("tasks", "image_classification").METRIC()
    given.update(logits, {"labels": labels})
    assert set(given.result()) | {"loss"} == set(find_use_case("ic").metrics)


@pytest.mark.parametrize(
    ("case", "said", "found"),
    [
        ("ic", None, "accuracy"),
        ("ic", "Accuracy", "accuracy"),
        ("ic", "top5", "accuracy_top_5"),
        ("detection", "mAP", "map"),
        ("detection", "mAP_0.5", "map_50"),
        ("qa", "f1", "f1"),
        ("nlg", "ppl", "perplexity"),
        ("custom", None, None),
    ],
)
def test_numbers_are_known_by_the_words_people_use(case, said, found):
    assert find_use_case(case).number(said) == found


def test_a_number_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(UsageError) as error:
        find_use_case("ic").number("mAP")
    assert "accuracy" in error.value.expected
    with pytest.raises(UsageError):
        find_use_case("custom").number("accuracy")


def test_a_name_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as error:
        find_use_case("image_clasification")
    assert "'image_classification'" in error.value.expected


OWN = """
def prepare(sample):
    return {"x": sample["values"], "label": sample["kind"]}

prepare.TASK = "sequence_classification"

def broken(sample):
    return sample

broken.TASK, broken.KIND, broken.METRIC = "clasification", "sounds", "wer"
NOTHING = 3
"""


def test_a_use_case_of_ones_own_is_a_function(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    case = find_use_case(f"{tmp_path / 'own.py'}:prepare")
    assert (case.task, case.metric, case.kind) == ("sequence_classification", "accuracy", "arrays")
    assert case.steps == (f"{tmp_path / 'own.py'}:prepare",)
    with pytest.raises(UsageError) as error:
        find_use_case(f"{tmp_path / 'own.py'}:broken")
    for said in ("'sequence_classification'", "KIND='sounds'", "METRIC='wer'"):
        assert said in str(error.value)
    with pytest.raises(UsageError, match="no function"):
        find_use_case(f"{tmp_path / 'own.py'}:NOTHING")


@pytest.mark.parametrize(
    ("format", "row", "name"),
    [
        ("image_folder", {"image": 1, "label": 0}, "image_classification"),
        ("yolo", {"image": 1, "polygons": [None]}, "object_detection"),
        ("yolo", {"image": 1, "polygons": [None, [[0, 0]]]}, "segmentation"),
        ("rows", {"text": "a", "label": "b"}, "text_classification"),
        ("rows", {"text": "a"}, "text_generation"),
        ("rows", {"prompt": "a", "completion": "b"}, "text_generation"),
        ("rows", {"messages": [{}]}, "text_generation"),
        ("rows", {"question": "a", "context": "b", "answers": {}}, "question_answering"),
        ("rows", {"words": ["a"], "tags": [0]}, "token_classification"),
        ("npz", {"input": torch.zeros(3, 4, 4), "label": 1}, "image_classification"),
        ("npz", {"input": torch.zeros(8)}, "custom"),
        (None, None, "custom"),
    ],
)
def test_what_data_looks_like_says_what_it_is_for(format, row, name):
    case, why = use_case_for(torch.nn.Linear(2, 2), format, row, None)
    assert case.name == name and why


def test_the_class_of_a_model_goes_before_what_data_looks_like():
    from transformers import BertConfig, BertForMaskedLM, BertForTokenClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(**sizes, vocab_size=10)
    row = {"text": "a", "label": "b"}
    assert use_case_for(BertForTokenClassification(config), "rows", row, None)[0].name == "token_classification"
    assert use_case_for(BertForMaskedLM(config), "rows", row, None)[0].name == "masked_language_modeling"
