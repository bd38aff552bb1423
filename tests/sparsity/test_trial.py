# SPDX-License-Identifier: Apache-2.0
"""A number that is asked for is told, or refused before anything is done; one that is not asked for may be missing."""

import pytest
from torch import nn

import fewbit
import sparsity_jobs as jobs
from drawn_shapes import write_folder
from fewbit import cli
from fewbit.data.dataset import Dataset
from fewbit.errors import UsageError
from fewbit.record import Record
from fewbit.sparsity import run
from fewbit.sparsity.stages import prune, quantize
from sparse_examples import arrays, classifier, graph, with_zeros

pytest.importorskip("accelerate")


@pytest.fixture
def idle(monkeypatch):
    """Nothing that costs anything may start."""

    def start(*_):
        raise AssertionError("the work has started")

    monkeypatch.setattr(prune, "run", start)
    monkeypatch.setattr(quantize, "run", start)
    monkeypatch.setattr(run, "measure", start)


def _shapes(tmp_path):
    return write_folder(tmp_path / "shapes", 24, 12, size=16)


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_more_classes_than_the_model_has_are_refused_where_a_number_is_asked_for(tmp_path, idle, kind):
    model = classifier(2) if kind == "module" else jobs.graph()
    rows = [row | {"labels": 5} for row in jobs.pictures(20)]
    data = _shapes(tmp_path) if kind == "module" else Dataset(rows, batched=False)
    with pytest.raises(UsageError) as error:
        fewbit.sparsify(model, data, use_case="ic", eval_metric="accuracy", optim_level=0.2)
    assert "cannot be judged by accuracy" in error.value.what
    wanted = "3 classes (disc, square, triangle), the model tells 2 apart" if kind == "module" else "labels go up to 5"
    assert wanted in error.value.what and "--eval-metric" in error.value.try_


def test_a_number_that_the_answers_do_not_tell_is_refused_with_those_they_tell(tmp_path, idle):
    with pytest.raises(UsageError) as error:
        fewbit.sparsify(classifier(3), _shapes(tmp_path), eval_metric="top5")
    assert "accuracy_top_5" in error.value.what
    assert error.value.expected == "one of accuracy, precision, recall, f1, loss"


def test_data_without_labels_is_refused_where_a_number_is_asked_for(tmp_path, idle):
    graph(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match="does not say what is right: it has input"):
        fewbit.sparsify(tmp_path / "model.onnx", arrays(tmp_path / "npz"), use_case="ic", eval_metric="accuracy")
    with pytest.raises(UsageError, match="no data"):
        fewbit.sparsify(classifier(), None, use_case="ic", eval_metric="accuracy", optim_level=0)


def test_a_fault_in_a_later_batch_is_an_error_before_the_first_stage(monkeypatch):
    monkeypatch.setattr(quantize, "run", lambda *_: pytest.fail("the work has started"))
    rows = jobs.pictures(40)
    rows[-1] = rows[-1] | {"labels": 7}
    data, validation = (Dataset(each, batched=False) for each in (rows[:8], rows))
    with pytest.raises(UsageError, match="labels go up to 7; the model has 3 classes"):
        fewbit.sparsify(jobs.network(), data, validation=validation, use_case="ic", eval_metric="f1", optim_level=0.2)


def test_what_is_asked_for_is_what_it_is_judged_by():
    data = Dataset(jobs.pictures(40), batched=False)
    made = fewbit.sparsify(jobs.network(), data, use_case="ic", eval_metric="recall", optim_level=0)
    facts = made.fewbit_record.facts
    assert facts["before"]["metric"]["name"] == "recall" and facts["before"]["not_judged"] is None


def test_where_nothing_is_asked_for_the_last_lines_say_why_it_was_not_judged(tmp_path, capsys, monkeypatch):
    data = _shapes(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from sparse_examples import classifier\n\n\ndef two():\n    return classifier(2)\n"
    )
    line = ["sparsify", "one-shot", "--model", "net.py:two", "--data", str(data), "--optim-level", "0", "-o", "out"]
    assert cli.run(line) == 0
    told = capsys.readouterr().out
    assert "not judged by accuracy: the data has 3 classes (disc, square, triangle), the model tells 2 apart" in told
    record = Record.from_json((tmp_path / "out" / "record.json").read_bytes())
    assert [line["what"] for line in record.lines].count("not-judged") == 1


def test_classes_in_another_order_than_the_models_are_no_accuracy(tmp_path):
    from types import SimpleNamespace

    model = classifier(3)
    model.config = SimpleNamespace(num_labels=3, id2label=dict(enumerate(("triangle", "square", "disc"))))
    with pytest.raises(UsageError, match="numbers its classes disc, square, triangle, the model triangle"):
        fewbit.sparsify(model, _shapes(tmp_path), use_case="ic", eval_metric="accuracy", optim_level=0)


def test_a_new_head_is_judged_after_it_was_trained(tmp_path):
    """The head that was given is for other classes: it cannot be asked, and nobody has to."""
    made = fewbit.sparsify(
        with_zeros(classifier(2)),
        _shapes(tmp_path),
        mode="sparse-transfer",
        use_case="ic",
        eval_metric="accuracy",
        optim_level=0,
        new_head=True,
        max_steps=1,
        device="cpu",
    )
    assert isinstance(made, nn.Module)
    facts = made.fewbit_record.facts
    assert facts["before"]["not_judged"] is not None and facts["after"]["metric"]["name"] == "accuracy"
