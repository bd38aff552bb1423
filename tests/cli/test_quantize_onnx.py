# SPDX-License-Identifier: Apache-2.0
"""ONNX files on the command line: what `quantize`, `compress` and `plan` make of them, and what they refuse."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import fewbit
from fewbit import cli
from fewbit.data.drawing import SEED, seeded_order
from fewbit.engine.quantizer import ModelQuantizer
from fewbit.errors import UsageError
from fewbit.record import Record
from processor import saturates
from quantized_models import mlp, numbers

ORDER = seeded_order(10, 10, None, seed=SEED)
JUDGES = ORDER[4::5]


def write_mlp(path, axes=(40,)):
    """The two layers of `mlp`, as a file."""
    tensors = {name: tensor.numpy() for name, tensor in mlp().state_dict().items()}
    nodes = [
        helper.make_node("Flatten", ["input"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "0.weight", "0.bias"], ["a"], name="first", transB=1),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Gemm", ["b", "2.weight", "2.bias"], ["out"], name="last", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", *axes])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_mlp(tmp_path / "m.onnx")
    (tmp_path / "samples").mkdir()
    for i, row in enumerate(numbers(10, 40).numpy()):
        np.savez(tmp_path / "samples" / f"{i}.npz", input=row)

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def answers(path):
    return session_of(path).run(None, {"input": numbers(10, 40).numpy()})[0]


def session_of(path, **options):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"], **options)


def error(path):
    """Of what is written; integer kernels of processors without VNNI may add to it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = session_of(path, sess_options=options).run(None, {"input": numbers(10, 40).numpy()})[0]
    with torch.no_grad():
        wanted = mlp()(numbers(10, 40)).numpy()
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def test_a_file_and_its_record(run, tmp_path):
    code, out, err = run("quantize", "m.onnx", "--data", "samples", "-o", "small.onnx")
    assert (code, err) == (0, "")
    assert files(tmp_path) == ["m.onnx", "samples", "small.onnx", "small.onnx.record.json"]
    assert error("small.onnx") < 1e-3 and "QuantizeLinear" in operators("small.onnx")
    record = Record.from_json((tmp_path / "small.onnx.record.json").read_bytes())
    assert record.facts["model"] == "m.onnx" and record.facts["data"] == "samples" and record.facts["items"] == 10
    assert {line["where"] for line in record.lines if line["what"] == "quantized"} == {"first", "last"}
    # without VNNI the runtime's sums are off, which is warned of too
    warned, first, *rest = [
        line for line in out.splitlines() if not (saturates() and re.match("warning: (?!calib)", line))
    ]
    assert warned.startswith("warning: calibrated on 10 samples only") and rest[0] == "  calibrated on all 10 samples"
    assert first.startswith("2 weights quantized, 0 left in float: ")
    assert "2 QGemm in integers" in out and "estimated: " in out and "measured on 2 held-out samples" in out
    assert rest[-1] == "in small.onnx; per-layer report: small.onnx.record.json"


def test_the_printed_error_is_the_one_of_the_written_file(run, tmp_path):
    """Every fifth sample judges; the same two, run here."""
    code, out, err = run("quantize", "m.onnx", "--data", "samples", "-o", "small.onnx", "--json")
    told = json.loads(out)
    assert code == 0 and told["output"] == "small.onnx", err
    wanted, found = answers("m.onnx").astype(float)[JUDGES], answers("small.onnx").astype(float)[JUDGES]
    shares = [np.square(a - b).sum() / np.square(a - a.mean()).sum() for a, b in zip(wanted, found)]
    assert told["facts"]["answers"]["error"] == pytest.approx(np.mean(shares), rel=1e-6)
    assert told["facts"]["executed"]["integer"] == {"QGemm": 2}


def test_one_sample_is_not_kept_aside(run):
    code, out, err = run("quantize", "m.onnx", "--data", "samples", "--samples", 1, "-o", "s.onnx")
    assert code == 0 and "measured on 1 calibration sample" in out, err
    record = Record.from_json(Path("s.onnx.record.json").read_bytes())
    assert record.facts["answers"]["kept_aside"] is False
    assert "not-kept-aside" in {line["what"] for line in record.lines}


def test_the_worst_sample_is_one_of_those_that_judge(run):
    code, out, err = run("quantize", "m.onnx", "--data", "samples", "-o", "s.onnx", "--json")
    facts = json.loads(out)["facts"]["answers"]
    wanted, found = answers("m.onnx").astype(float), answers("s.onnx").astype(float)
    shares = {i: np.square(wanted[i] - found[i]).sum() / np.square(wanted[i] - wanted[i].mean()).sum() for i in JUDGES}
    worst = max(shares, key=shares.get)
    assert code == 0 and facts["kept_aside"] and facts["worst"] == pytest.approx(shares[worst], rel=1e-6), err
    assert (
        ORDER[facts["worst_item"]] == worst and facts["worst_place"] == f"sample {worst} ({worst}.npz, sample {worst})"
    )


def test_pixels_that_were_not_scaled_are_warned_of_first(run, tmp_path):
    write_mlp(tmp_path / "m.onnx", axes=(5, 8))
    (tmp_path / "bytes").mkdir()
    for i in range(5):
        np.savez(tmp_path / "bytes" / f"{i}.npz", input=np.full((5, 8), 40 * i, np.uint8))
    code, _, err = run("quantize", "m.onnx", "--data", "bytes", "-o", "s.onnx", "--price", "1e-9")
    assert code == 2 and "nothing was quantized" in err and "divide by 255" in err
    code, out, err = run("quantize", "m.onnx", "--data", "bytes", "-o", "s.onnx", "--price", "inf")
    assert code == 0 and "divide by 255" in out.splitlines()[0] and out.splitlines()[0].startswith("warning: "), err


def test_names_near_a_model_that_is_not_there(run):
    code, _, err = run("quantize", "mm.onnx", "--data", "samples", "-o", "s.onnx")
    assert code == 2 and "did you mean 'm.onnx'?" in err
    code, _, err = run("check", "samples", "--model", "mm.onnx")
    assert code == 2 and "did you mean 'm.onnx'?" in err


def test_advice_in_python_is_pythons(run):
    with pytest.raises(UsageError, match="no calibration data") as caught:
        fewbit.quantize("m.onnx")
    assert "fewbit.quantize(model, data)" in caught.value.try_ and "preset='w8a8_dynamic'" in caught.value.try_
    fewbit.quantize("m.onnx", preset="w8a8_dynamic")


def test_batches_and_fewer_samples(run, tmp_path):
    code, out, err = run(
        "quantize", "m.onnx", "--data", "samples", "-o", "s.onnx", "--batch-size", 2, "--samples", 6, "--json"
    )
    assert code == 0 and json.loads(out)["facts"]["items"] == 3, err


def test_dynamic_needs_no_data(run, tmp_path):
    code, out, err = run("quantize", "m.onnx", "--preset", "w8a8_dynamic", "-o", "d.onnx")
    assert code == 0 and "2 weights quantized" in out and "2 activations" in out, err
    # dynamic layers are integer products even without optimizations
    assert error("d.onnx") < (0.1 if saturates() else 1e-3) and {"DynamicQuantizeLinear", "MatMulInteger"} & set(
        operators("d.onnx")
    )


def test_weights_alone(run, tmp_path):
    code, out, err = run("compress", "m.onnx", "--mode", "int4_sym", "--group-size", 16, "-o", "w.onnx")
    assert code == 0 and "2 weights quantized" in out, err
    assert "MatMulNBits" in operators("w.onnx") and error("w.onnx") < 0.02
    assert (tmp_path / "w.onnx").stat().st_size < (tmp_path / "m.onnx").stat().st_size


def test_a_module_is_compressed_into_a_folder(run, tmp_path):
    from fewbit.engine.delivering import load

    (tmp_path / "build.py").write_text("def make():\n    from quantized_models import mlp\n    return mlp()\n")
    code, out, err = run("compress", "build.py:make", "--mode", "int4_sym", "--group-size", 8, "-o", "out", "--json")
    assert code == 0 and json.loads(out)["output"] == "out", err
    made = load(tmp_path / "out", mlp())
    # the last layer is the answer, and takes eight bits unless --all-layers
    assert [made[i].coded["weight"].grid.dtype.name for i in (0, 2)] == ["int4", "uint8"]
    assert (
        run("compress", "build.py:make", "--mode", "int4_sym", "--group-size", 8, "-o", "all", "--all-layers")[0] == 0
    )
    assert load(tmp_path / "all", mlp())[2].coded["weight"].grid.dtype.name == "int4"


def test_the_plan_of_a_file(run):
    code, out, err = run("plan", "m.onnx", "--json")
    plan = json.loads(out)
    assert code == 0 and [layer["layer"] for layer in plan["layers"]] == ["first", "last"] and plan["needs_data"], err
    code, out, _ = run("plan", "m.onnx", "--ignore", "la*", "--json")
    assert code == 0 and json.loads(out)["layers"][-1]["float"] == 'exclude "la*"'


@pytest.mark.parametrize("name", ["last", "la*", "re:l.st"])
def test_what_is_ignored_stays_in_float(run, tmp_path, name):
    code, out, err = run("quantize", "m.onnx", "--data", "samples", "-o", "s.onnx", "--ignore", name, "--json")
    told = json.loads(out)
    assert code == 0 and told["facts"]["integer"] == {"Gemm": 1}, err
    kept = {line["where"]: line["reason"] for line in told["lines"] if line["what"] == "float"}
    assert list(kept.values()) == [f'exclude "{name}"']
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load("s.onnx").graph.initializer}
    assert np.array_equal(weights["2.weight"], mlp().state_dict()["2.weight"].numpy()) and "0.weight" not in weights


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["m.onnx", "-o", "s.onnx"], 2, "need calibration data"),
        (["m.onnx", "-o", "s.onnx", "--data", "samples", "--ignore", "lst"], 2, "did you mean 'last'"),
        (["m.onnx", "-o", "s.onnx", "--data", "samples", "--factory", "a.py:b"], 2, "--factory for m.onnx"),
        (["m.onnx", "-o", "s.onnx", "--data", "samples", "--price", "0"], 2, "price"),
        (["m.onnx", "-o", "nowhere/s.onnx", "--data", "samples"], 2, "there is no folder"),
        (["m.onnx", "-o", "samples", "--data", "samples"], 2, "is a folder"),
        (["m.onnx", "-o", "m.onnx", "--data", "samples"], 2, "is there already"),
        (["m.onnx", "-o", "m.onnx", "--data", "samples", "--overwrite"], 2, "is not an earlier result"),
        (["none.onnx", "-o", "s.onnx", "--data", "samples"], 2, "no file or folder"),
        (["cut.onnx", "-o", "s.onnx", "--data", "samples"], 1, "cannot be read"),
        (["m.onnx", "-o", "s.onnx", "--data", "other"], 1, "expected [40] without the batch axis, found [39]"),
    ],
)
def test_faults_come_before_the_work_and_leave_nothing(run, tmp_path, monkeypatch, arguments, code, what):
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:200])
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "0.npz", input=np.zeros(39, np.float32))
    before = files(tmp_path)
    monkeypatch.setattr(ModelQuantizer, "quantize_view", lambda *_, **__: pytest.fail("the work started"))
    found, out, err = run("quantize", *arguments)
    assert found == code and what in err and not out and files(tmp_path) == before


def test_what_is_for_graphs_only_is_refused_for_modules(run, tmp_path):
    (tmp_path / "build.py").write_text("def make():\n    from quantized_models import mlp\n    return mlp()\n")
    for more, what in ((["--price", "1"], "--price 1.0"), (["--target", "openvino"], "target 'openvino'")):
        code, _, err = run("quantize", "build.py:make", "--preset", "w4a16", "-o", "out", *more)
        assert code == 2 and what in err and not (tmp_path / "out").exists()


def test_a_target_that_there_is_not(run, tmp_path):
    before = files(tmp_path)
    code, _, err = run("quantize", "m.onnx", "--data", "samples", "-o", "s.onnx", "--target", "onxruntime")
    assert code == 2 and "did you mean 'onnxruntime'" in err and files(tmp_path) == before


def test_a_mode_that_there_is_not(run):
    code, _, err = run("compress", "m.onnx", "--mode", "int4_sim", "-o", "s.onnx")
    assert code == 2 and "did you mean 'int4_sym'" in err


def test_overwriting_replaces_what_fewbit_wrote_and_nothing_else(run, tmp_path):
    line = ["quantize", "m.onnx", "--data", "samples", "-o", "s.onnx"]
    assert run(*line)[0] == 0
    made = (tmp_path / "s.onnx").read_bytes()
    code, _, err = run(*line, "--price", "inf")
    assert code == 2 and "--overwrite" in err and (tmp_path / "s.onnx").read_bytes() == made
    (tmp_path / "s.onnx").write_bytes(b"")
    assert run(*line, "--overwrite")[0] == 0 and (tmp_path / "s.onnx").read_bytes() == made
    (tmp_path / "s.onnx.record.json").write_text('{"mine": 1}')
    code, _, err = run(*line, "--overwrite")
    assert (
        code == 2 and "not an earlier result" in err and (tmp_path / "s.onnx.record.json").read_text() == '{"mine": 1}'
    )


def test_a_model_that_is_quantized_already(run, tmp_path):
    assert run("quantize", "m.onnx", "--data", "samples", "-o", "s.onnx")[0] == 0
    for command in (["plan", "s.onnx"], ["quantize", "s.onnx", "--data", "samples", "-o", "again.onnx"]):
        code, _, err = run(*command)
        assert code == 2 and "quantized already" in err and not (tmp_path / "again.onnx").exists()


@pytest.mark.parametrize("place", ["fewbit.engine.quantizer.execute", "fewbit.backends.graph.saving.os.replace"])
def test_an_interrupted_run_leaves_nothing(run, tmp_path, monkeypatch, place):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = files(tmp_path)
    monkeypatch.setattr(place, interrupted)
    answer = run("quantize", "m.onnx", "--data", "samples", "-o", "s.onnx")
    assert answer == (130, "", "interrupted\n") and files(tmp_path) == before


def write_encoder(path):
    """Tokens in; their vectors, times a matrix, out. Both a mask and the types of tokens have to be given."""
    draw = np.random.default_rng(0)
    tensors = {"table": draw.standard_normal((96, 16)), "types": draw.standard_normal((2, 16))}
    tensors["w"] = draw.standard_normal((16, 8))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["a"], name="words"),
        helper.make_node("Gather", ["types", "token_type_ids"], ["b"], name="kinds"),
        helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT, name="mask"),
        helper.make_node("Unsqueeze", ["m", "last"], ["n"], name="wide"),
        helper.make_node("Mul", ["c", "n"], ["d"], name="masked"),
        helper.make_node("MatMul", ["d", "w"], ["out"], name="head"),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in names],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", "t", 8])],
        [
            *(numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()),
            numpy_helper.from_array(np.array([-1]), "last"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("place", ["e.onnx", "onnx/e.onnx"])
def test_texts_are_tokenized_by_what_lies_beside_the_file(run, tmp_path, place):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(4, 96)} | {"<unk>": 0, "<pad>": 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    home = tmp_path / "home"
    (home / place).parent.mkdir(parents=True)
    write_encoder(home / place)
    arguments = [
        "compress",
        f"home/{place}",
        "--mode",
        "int8_sym",
        "--data",
        "texts.jsonl",
        "--seqlen",
        5,
        "-o",
        "s.onnx",
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": "w5 w6 w7 " * i}) for i in range(1, 7)))
    code, _, err = run(*arguments)
    assert code == 1 and "no tokenizer" in err and not (tmp_path / "s.onnx").exists()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>").save_pretrained(home)
    code, out, err = run(*arguments)
    assert code == 0 and "5 rows had more than 5 tokens" in out, err


def test_a_type_can_be_ignored(run, tmp_path):
    code, _, err = run("compress", "m.onnx", "--mode", "int8_sym", "--ignore", "Gemm", "-o", "out.onnx")
    assert code == 2 and "nothing to quantize" in err and 'exclude "first"' in err and 'exclude "last"' in err
    assert files(tmp_path) == ["m.onnx", "samples"]
