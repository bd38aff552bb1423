# SPDX-License-Identifier: Apache-2.0
"""`sparsify` end to end, without training: every kind of model from every kind of data, with the real stages."""

import random

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import fewbit
from drawn_shapes import write_folder
from fewbit.errors import UsageError
from fewbit.sparsity.levels import recipe_for
from fewbit.sparsity.verb import sparsify
from sparse_examples import arrays, classifier, decoder, digest, encoder, graph, pairs, rated, with_zeros, zeros

pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "shapes", train=36, val=12)


def test_the_public_names():
    assert fewbit.sparsify is sparsify and fewbit.Recipe.from_dict({"stages": []}).stages == ()


def test_a_network_of_convolutions_from_a_folder_of_pictures(shapes):
    model, before = classifier(), digest(shapes)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random.seed(5), torch.manual_seed(5), np.random.seed(5)
    drawn = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    result = sparsify(model, str(shapes), optim_level=0.5)
    assert random.getstate() == drawn[0] and torch.equal(torch.get_rng_state(), drawn[1])
    assert np.random.get_state()[1].tolist() == drawn[2]
    assert digest(shapes) == before  # nothing was written into the user's data
    assert result is not model and not hasattr(model, "fewbit_record") and not model.training
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    facts = result.fewbit_record.facts
    assert facts["use_case"] == "image_classification" and facts["metric"] == "accuracy"
    assert facts["classes"] == ["disc", "square", "triangle"]
    more = {"use_case": "image_classification", "samples": 128}
    assert facts["recipe"] == recipe_for("one-shot", 0.5).to_dict() | more
    assert facts["before"]["metric"]["name"] == facts["after"]["metric"]["name"] == "accuracy"
    assert facts["before"]["samples"] == 12  # of the split that is called val
    pruned = result[2].weight, result[4].weight
    for weight in pruned:  # the first and the last layer are codes without zeros
        assert abs(float((weight == 0).float().mean()) - 0.5143) < 0.03
    again = sparsify(model, str(shapes), recipe=recipe_for("one-shot", 0.5))
    assert all(torch.equal(a, b) for a, b in zip(result.state_dict().values(), again.state_dict().values()))


def test_level_0_is_a_copy_and_says_so(shapes):
    model = classifier()
    same = sparsify(model, shapes, optim_level=0)
    assert same is not model
    assert all(torch.equal(a, b) for a, b in zip(same.state_dict().values(), model.state_dict().values()))
    assert "unchanged" in [line["what"] for line in same.fewbit_record.lines]
    assert same.fewbit_record.facts["recipe"]["stages"] == []


def test_below_03_there_are_codes_and_no_new_zeros(shapes):
    result = sparsify(classifier(), shapes, optim_level=20)
    assert [list(stage) for stage in result.fewbit_record.facts["recipe"]["stages"]] == [["quantize"]]
    assert zeros(result) < 0.05


def matrices(model):
    found = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    return [array for array in found if array.ndim > 1]


def test_a_graph_from_a_folder_of_samples(tmp_path):
    path, data = graph(tmp_path / "model.onnx"), arrays(tmp_path / "data")
    kept = path.read_bytes(), digest(data)
    result = sparsify(path, data)
    assert isinstance(result, onnx.ModelProto) and (path.read_bytes(), digest(data)) == kept
    middle = next(array for array in matrices(result) if array.shape == (16, 8, 3, 3))
    assert middle.dtype == np.int8 and abs((middle == 0).mean() - 0.5143) < 0.02
    proto = onnx.load(path)
    text = proto.SerializeToString()
    again = sparsify(proto, data)
    assert proto.SerializeToString() == text  # the caller's model stays as it is
    assert [a.tolist() for a in matrices(again)] == [a.tolist() for a in matrices(result)]
    same = sparsify(proto, data, optim_level=0)
    assert same is not proto and same == proto


def test_a_graph_from_a_folder_of_pictures_of_another_size(tmp_path, shapes):
    """Pictures are made what the graph is fixed to."""
    result = sparsify(graph(tmp_path / "model.onnx", side=24, batch=1), shapes, use_case="ic", samples=12)
    assert isinstance(result, onnx.ModelProto)


def test_a_graph_that_takes_four_samples_at_a_time(tmp_path):
    result = sparsify(graph(tmp_path / "model.onnx", batch=4), arrays(tmp_path / "data", 18))
    assert result.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4


@pytest.mark.parametrize("name", [pytest.param("rows.jsonl", marks=pytest.mark.slow), "rows.csv"])
def test_a_text_classifier_from_rows(tmp_path, name):
    model = encoder(tmp_path / "model", num_labels=3)
    result = sparsify(model, rated(tmp_path / name), use_case="sentiment_analysis", samples=16)
    facts = result.fewbit_record.facts
    assert facts["use_case"] == "text_classification" and facts["classes"] == ["negative", "neutral", "positive"]
    assert facts["after"]["sparsity"]["share"] > 0.35
    assert facts["before"]["metric"]["name"] == "accuracy" and facts["preprocessing"]["kind"] == "texts"


def test_a_language_model_from_rows(tmp_path):
    result = sparsify(decoder(tmp_path / "model"), pairs(tmp_path / "rows.jsonl"), seqlen=16, samples=8)
    facts = result.fewbit_record.facts
    assert facts["use_case"] == "text_generation" and facts["after"]["metric"]["name"] == "perplexity"
    assert "use-case" in [line["what"] for line in result.fewbit_record.lines]
    layer = facts["after"]["sparsity"]["layers"]["model.layers.0.mlp.up_proj"]
    assert abs(layer["share"] - 0.5143) < 0.02


def test_a_loader_and_the_users_own_validation(shapes):
    torch.manual_seed(0)
    batches = [(torch.rand(4, 3, 16, 16), torch.randint(0, 3, (4,))) for _ in range(4)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    result = sparsify(classifier(), loader, use_case="image_classification", validation=loader, eval_metric="loss")
    facts = result.fewbit_record.facts
    assert facts["metric"] == "loss" and facts["after"]["metric"]["name"] == "loss"
    assert facts["after"]["samples"] == 16


@pytest.mark.filterwarnings("ignore::fewbit.data.objects.spool.SpoolWarning")
def test_what_can_be_read_once_only_is_enough():
    torch.manual_seed(0)
    batches = [torch.rand(2, 3, 16, 16) for _ in range(6)]
    result, same = (sparsify(classifier(), data) for data in ((batch for batch in batches), batches))
    assert all(torch.equal(a, b) for a, b in zip(result.state_dict().values(), same.state_dict().values()))


OWN = """
import numpy as np
calls = []

def prepare(sample):
    calls.append(1)
    return {"input": np.asarray(sample["values"], np.float32), "label": sample["kind"]}

prepare.TASK = "sequence_classification"
"""


def test_a_use_case_of_ones_own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    rng = np.random.default_rng(0)
    rows = [f'{{"values": {rng.normal(size=16).tolist()}, "kind": {i % 3}}}' for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 3))
    result = sparsify(model, tmp_path / "rows.jsonl", use_case=f"{tmp_path / 'own.py'}:prepare")
    facts = result.fewbit_record.facts
    assert facts["task"] == "sequence_classification" and facts["after"]["metric"]["name"] == "accuracy"
    assert abs(float((result[2].weight == 0).float().mean()) - 0.5143) < 0.02


def test_every_fault_of_a_call_is_told_at_once(tmp_path):
    with pytest.raises(UsageError) as error:
        sparsify(
            tmp_path / "model.onnx", tmp_path / "data", optim_level=2.5, use_case="image_clasification", samples=0,
            seqlne=5, lr=1e-3,
        )  # fmt: skip
    told = str(error.value)
    for said in ("2.5", "'image_classification'", "samples=0", "'seqlen'", "lr: one-shot trains", "model.onnx", "data"):
        assert said in told, said


def test_another_mode_and_another_kind_of_model_are_refused(tmp_path):
    with pytest.raises(UsageError, match="oneshot"):
        sparsify(classifier(), None, mode="oneshot")
    with pytest.raises(UsageError, match="the recipe is for one-shot"):
        sparsify(classifier(), None, mode="training-aware", recipe=recipe_for("one-shot", 0.5))
    with pytest.raises(UsageError, match="is no model"):
        sparsify(3, None)
    with pytest.raises(UsageError, match="cannot be trained"):
        sparsify(graph(tmp_path / "m.onnx"), arrays(tmp_path / "data"), mode="training-aware", use_case="ic")


def test_data_that_the_use_case_does_not_read_is_refused(tmp_path, shapes):
    with pytest.raises(UsageError, match="does not read the format image_folder"):
        sparsify(encoder(tmp_path / "model"), shapes, use_case="qa")


def test_without_data_what_needs_none_is_done():
    recipe = fewbit.Recipe.from_yaml("stages: [{prune: {sparsity: 0.5}}, {quantize: {preset: w8a8_dynamic}}]")
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    result = sparsify(model, None, recipe=recipe)
    assert abs(float((result[0].weight == 0).float().mean()) - 0.5) < 0.05
    with pytest.raises(UsageError, match="calibration data"):
        sparsify(model, None, optim_level=0.2)


def test_texts_without_a_tokenizer_are_refused(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=20))
    with pytest.raises(
        UsageError, match=r"the data is texts, for text_generation \(the model is a Llama.* no tokenizer"
    ) as error:
        sparsify(model, pairs(tmp_path / "rows.jsonl"))
    assert "--option tokenizer=FOLDER" in error.value.try_


def test_the_recipe_that_is_written_makes_the_same_model_again(tmp_path):
    torch.manual_seed(0)
    data, recipe = [torch.randn(1, 3, 8, 8) for _ in range(32)], {"stages": [{"prune": {"sparsity": 0.5}}]}
    given = fewbit.Recipe.from_dict(recipe)
    first = sparsify(classifier(), data, recipe=given, samples=4, output=tmp_path / "out")
    wanted = sparsify(classifier(), data, recipe=given, samples=4).state_dict()
    again = sparsify(classifier(), data, recipe=first / "recipe.yaml").state_dict()
    assert all(torch.equal(wanted[name], again[name]) for name in wanted)
    other = sparsify(classifier(), data, recipe=first / "recipe.yaml", samples=32)  # what the call says goes before
    assert other.fewbit_record.facts["recipe"]["samples"] == 32
    assert any(not torch.equal(wanted[name], tensor) for name, tensor in other.state_dict().items())


def test_the_recipe_of_texts_says_how_long_they_are(tmp_path):
    data = pairs(tmp_path / "rows.jsonl")
    model = decoder(tmp_path / "model")
    recipe = fewbit.Recipe.from_dict({"seqlen": 8, "stages": [{"prune": {"sparsity": 0.5}}]})
    facts = sparsify(model, data, recipe=recipe).fewbit_record.facts
    assert facts["recipe"]["seqlen"] == 8 == facts["preprocessing"]["seqlen"]


def test_what_nothing_would_come_of_is_refused(shapes):
    pruning = fewbit.Recipe.from_dict({"stages": [{"prune": {"sparsity": 0.5}}]})
    training = fewbit.Recipe.from_dict({"stages": [{"train": {"max_steps": 1}}]})
    with pytest.raises(UsageError, match="nothing in the recipe trains"):
        sparsify(classifier(), shapes, recipe=pruning, teacher=classifier())
    with pytest.raises(UsageError, match="the model is on cpu"):
        sparsify(classifier(), shapes, recipe=pruning, device="cuda")
    with pytest.raises(UsageError, match="the recipe is for training-aware"):
        sparsify(classifier(), shapes, mode="one-shot", recipe=training)
    assert sparsify(classifier(), None, recipe=pruning, device="cpu", teacher="off").fewbit_record


def test_a_transfer_of_a_model_without_zeros_is_refused_before_it_is_trained(shapes):
    recipe = fewbit.Recipe.from_dict({"mode": "sparse-transfer", "stages": [{"train": {"max_steps": 1}}]})
    with pytest.raises(UsageError, match="no zeros that could stay") as error:
        sparsify(classifier(), shapes, recipe=recipe)
    assert "training-aware" in error.value.try_ and "finetune" in error.value.try_
    assert sparsify(with_zeros(classifier()), shapes, recipe=recipe).fewbit_record
    making = {"mode": "sparse-transfer", "stages": [{"prune": {"sparsity": 0.5}}, {"train": {"max_steps": 1}}]}
    assert sparsify(classifier(), shapes, recipe=fewbit.Recipe.from_dict(making)).fewbit_record
