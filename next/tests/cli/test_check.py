# SPDX-License-Identifier: Apache-2.0
"""`fewbit check` as people use it, and the rule that no option is swallowed."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

import fewbit as package
from fewbit import registry
from fewbit.cli.help_text import command_help
from fewbit.cli.parsing import parse_command
from fewbit.data.images.preprocess import PRESETS
from fewbit.errors import UsageError, render
from fewbit.option_rules import NOT_BUILT, RULES, shown_options
from fewbit.options import OPTIONS, option, options_of


@pytest.fixture
def photos(tmp_path):
    """Two classes of 8 x 8 images, one of them empty."""
    for number in range(12):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), number * 20, np.uint8)).save(path)
    (tmp_path / "photos" / "cat" / "0.png").write_bytes(b"")
    return tmp_path / "photos"


@pytest.fixture
def image_model(tmp_path):
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value("x", 1, ["N", 3, 8, 8])],
        [value("y", 1, ["N", 3, 8, 8])],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--transform", "a.py:fn"], "--transform has no effect without --model"),
        (["--mean", "0.5", "--std", "0.5"], "--mean and --std have no effect without --model"),
        (["--resize", "crop"], "--resize has no effect without --model"),
        (["--preprocess", "imagenet"], "--preprocess has no effect without --model"),
        (["--preprocess", "imagenett"], "'imagenett' is not a value of --preprocess"),
        (["-o", "out"], "--output has no effect without --fix"),
        (["--seed", "4"], "--seed has no effect without --samples or --purpose"),
        (["--workers", "2"], "check has no --workers yet"),
        (["--fix", "-o", "out", "--model", "m.onnx"], "--model has no effect with --fix"),
        (["--model", "m.onnx", "--transform", "a.py:fn", "--mean", "0.5"], "--mean has no effect with --transform"),
        (["--purpose", "training"], "check has no --purpose training yet"),
        (["--mean", "0.5,0.5"], "'0.5,0.5' is not a value of --mean"),
    ],
)
def test_an_option_without_effect_is_an_error(fewbit, photos, words, text):
    code, _, err = fewbit("check", photos, *words)
    assert code == 2 and text in err and "try:" in err, err


def test_the_same_rule_holds_in_python(photos, image_model):
    for wrong in ({"image_size": 8}, {"workers": 2}, {"model": str(image_model), "transform": len, "mean": 0.5}):
        with pytest.raises(UsageError):
            package.check_dataset(str(photos), progress=False, **wrong)
    with pytest.raises(UsageError, match="no effect with transform="):
        package.open_dataset(str(photos), transform=len, mean=0.5)
    assert package.check_dataset([{"x": np.zeros(3)}], preprocess="auto", seed=0, resize=None, progress=False).ok


def test_options_of_open_dataset_hold_for_inputs(photos, image_model):
    from fewbit.backends.onnx.inspect import inspect_onnx

    dataset = package.open_dataset(str(photos / "dog"), mean=0.5, std=0.5, samples=2)
    for inputs in dataset.subset(1).inputs(inspect_onnx(image_model)):
        level = float(inputs["x"][0, 0, 0, 0] * 0.5 + 0.5) * 255 / 20  # images are gray in steps of 20
        assert inputs["x"].shape == (1, 3, 8, 8) and level == pytest.approx(round(level), abs=1e-3)


def test_the_tables_of_unused_options_name_real_ones():
    names = {option.name for option in OPTIONS}
    for rule in RULES:
        assert {*rule.options, *rule.needs, *rule.without} <= names
    for command, later in NOT_BUILT.items():
        assert later <= {option.name for option in options_of(command)}
        assert not later & {option.name for option in shown_options(command)}
        assert not any(f"--{name.replace('_', '-')} " in command_help(command, long=True) for name in later)
    assert set(option("preprocess").choices) == {"auto", *PRESETS} and option("resize").default is None


def test_the_preprocessing_is_shown_and_recorded(fewbit, photos, image_model):
    words = ["check", photos / "dog", "--model", image_model, "--mean", "0.5", "--std", "0.5"]
    code, out, err = fewbit(*words)
    assert code == 0, err
    assert "  inputs    8 x 8 (center crop); RGB 0..1, mean 0.5, std 0.5, NCHW (options)\n" in out
    assert "  model     ONNX; input x: float32 [N, 3, 8, 8]\n" in out and "  fitting   6 of 6 samples\n" in out
    facts = json.loads(fewbit(*words, "--json")[1])["record"]["facts"]
    assert facts["preprocessing"]["mean"] == [0.5] and facts["preprocessing"]["source"] == "options"


def test_options_for_images_need_images(fewbit, npz_folder, tiny_onnx):
    code, _, err = fewbit("check", npz_folder, "--model", tiny_onnx, "--mean", "0.5")
    assert code == 2 and "--mean has no effect: the samples hold no images" in err


def test_a_repaired_copy_can_be_replaced_and_nothing_else(fewbit, photos, tmp_path):
    command = ["check", photos, "--fix", "-o", "repaired"]
    code, out, err = fewbit(*command)
    assert code == 0 and "repaired copy in repaired\nOK" in out and "\n  next " not in out, out + err
    code, _, err = fewbit(*command)
    assert code == 2 and "--overwrite replaces it" in err
    assert fewbit(*command, "--overwrite")[0] == 0 and fewbit("check", "repaired")[0] == 0
    (tmp_path / "repaired" / "cat" / "mine.png").write_bytes(b"mine")
    code, _, err = fewbit(*command, "--overwrite")
    assert code == 2 and "mine.png was changed or added since" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.txt").write_text("mine")
    code, _, err = fewbit("check", photos, "--fix", "-o", "other", "--overwrite")
    assert code == 2 and "not written by fewbit" in err


def test_the_next_line_is_a_command_that_runs(fewbit, photos):
    _, out, _ = fewbit("check", photos, "--show", "1", "--task", "image-classification")
    (line,) = [line for line in out.splitlines() if line.startswith("  next ")]
    words = shlex.split(line.removeprefix("  next").partition("    leaves")[0])
    assert max(map(len, out.splitlines()[-2:])) <= max(100, len(shlex.join(words)) + 12)
    assert words[:2] == ["fewbit", "check"] and words.count("--fix") == 1
    assert "--show" not in words and "--task" in words
    parse_command("check", words[2:])
    assert "\n  next " not in fewbit("check", photos / "dog")[1]


def test_kinds_that_are_listed(fewbit):
    code, out, _ = fewbit("list")
    kinds = [line.split()[0] for line in out.splitlines()]
    assert code == 0 and {"presets", "data-formats", "datasets", "issues", "algorithms", "metrics", "observers"} <= set(
        kinds
    )
    for kind in kinds:
        assert fewbit("list", kind)[0] == 0
    for words in (["list", "presents"], ["list", "methods"]):
        code, _, err = fewbit(*words)
        assert code == 2 and ", ".join(kinds) in err
    code, _, err = fewbit("list", "tasks", "--data-format", "yolo")
    assert code == 2 and "fewbit list issues --data-format yolo" in err
    codes = [line.split()[0] for line in fewbit("list", "issues")[1].splitlines()]
    assert len(codes) == len(set(codes))


def test_all_samples_drawn_are_the_complete_check(tmp_path, fewbit):
    from fewbit.data.formats import image_folder

    folder = image_folder.example(tmp_path / "set")
    first, *_ = sorted(path for path in folder.rglob("*.*") if path.is_file())
    first.with_name(f"copy{first.suffix}").write_bytes(first.read_bytes())
    complete = fewbit("check", str(folder))[:2]
    assert "[duplicate]" in complete[1] and fewbit("check", str(folder), "--samples", "1000")[:2] == complete
    _, out, _ = fewbit("check", str(folder), "--samples", "2")
    assert "[duplicate]" not in out and "without --samples, everything is checked" in out


def test_positional_parameters_are_named_as_in_the_usage_line(fewbit):
    _, _, err = fewbit("check", "nothere")
    assert "hf:nothere as DATA" in err and "--data" not in err
    _, _, err = fewbit("capture", "model.txt", "--data", "nothere", "-o", "out")
    assert "--model" not in err, err
    assert render("{data} or {data=x}", "cli") == "--data or --data x"


def test_every_checkpoint_format_is_listed(fewbit):
    names = {line.split()[0].replace("-", "_") for line in fewbit("list", "formats")[1].splitlines()}
    assert set(registry.names("checkpoints")) <= names
