# SPDX-License-Identifier: Apache-2.0
"""The configuration: frozen, written and read back, every mistake at once (claims 3.4 and 3.10)."""

import subprocess
import sys

import pytest
from PIL import Image
from pydantic import ValidationError

from fewbit.data.loading import DatasetConfig, generate_dataset_config
from fewbit.errors import DataError, UsageError
from fewbit.settings import SettingsError

STEPS = ["tokenization", "masking", "truncation", "padding"]
MEMORY = [{"text": "a"}]


@pytest.fixture
def rows(write):
    return write([{"prompt": f"{n} + 1?", "completion": str(n + 1)} for n in range(20)])


def configure(rows, steps=STEPS, **custom):
    return generate_dataset_config(rows, steps, {"tokenizer": "bytes", **custom})


def test_a_configuration_survives_yaml_json_and_another_process(rows):
    custom = {"max_length": 64, "padding": {"multiple_of": 8}, "seed": 3, "batch_size": 4}
    config = configure(rows, **custom)
    assert DatasetConfig.from_yaml(config.to_yaml()) == config == DatasetConfig.from_yaml(config.to_json())
    assert config.to_dict()["custom_config"] == {"tokenizer": "bytes", **custom}
    assert config.fingerprint() != configure(rows).fingerprint()
    code = "import sys, fewbit; print(fewbit.DatasetConfig.from_yaml(sys.stdin.read()).fingerprint())"
    other = subprocess.run([sys.executable, "-c", code], input=config.to_yaml(), capture_output=True, text=True)
    assert other.stdout.strip() == config.fingerprint(), other.stderr


def test_arguments_mapping_and_files_give_the_same_configuration(rows, tmp_path):
    config = configure(rows, max_length=7)
    (tmp_path / "settings.yaml").write_text("tokenizer: bytes\nmax_length: 7\n")
    (tmp_path / "settings.json").write_text('{"tokenizer": "bytes", "max_length": 7}')
    (tmp_path / "all.yaml").write_text(config.to_yaml())
    for arguments in (
        (rows, STEPS, tmp_path / "settings.yaml"), (rows, tuple(STEPS), str(tmp_path / "settings.json")),
        (tmp_path / "all.yaml",), (config.to_dict(),),
    ):  # fmt: skip
        assert generate_dataset_config(*arguments) == config


def test_a_configuration_is_replaced_not_changed(rows):
    config = configure(rows)
    with pytest.raises(ValidationError):
        config.dataset_name = "other"
    longer = config.replace(max_length=9)
    assert longer.custom_config.max_length == 9 and config.custom_config.max_length is None
    assert longer.preprocessing_steps == config.preprocessing_steps and "max_length=9" in repr(longer)


def test_all_mistakes_come_at_once_with_what_was_probably_meant():
    custom = {"max_lenght": 5, "seed": "x", "batch_size": 0}
    with pytest.raises(SettingsError, match="6 errors") as caught:
        generate_dataset_config("gsm8", ["padding", "tokenisation", "tokenization"], custom)
    problems = [f"{path}: {text}" for path, text in caught.value.problems]
    for start, part in (
        ("dataset_name", "did you mean 'gsm8k'?"),
        ("preprocessing_steps", "did you mean 'tokenization'"),
        ("preprocessing_steps", "'padding' must come after 'tokenization'"),
        ("custom_config.max_lenght", "did you mean 'max_length'"),
        ("custom_config.seed", "got 'x'"),
        ("custom_config.batch_size", "got 0"),
    ):
        assert any(problem.startswith(start) and part in problem for problem in problems), (start, problems)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["masking"], "'masking' needs 'tokenization'"),
        (["tokenization", "tokenization"], "listed twice"),
        (["tokenization", "augmentation"], "'tokenization' must come after 'augmentation'"),
        (["tokenization", "packing"], "packing needs max_length"),
        (["mixing"], "at least one dataset"),
        ("tokenization", "expected"),
        ([3], "expected"),
    ],
)
def test_impossible_steps(steps, message):
    with pytest.raises(SettingsError, match=message):
        generate_dataset_config(MEMORY, steps, {"tokenizer": "bytes"})


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"data_path": "x"}, "data_path: unknown setting"),
        ({"filter_include": {"text": "("}}, "no regular expression"),
        ({"sampling_count": 3, "sampling_share": 0.5}, "either sampling_count or sampling_share"),
        ({"sampling_weights": "balanced"}, "needs sampling_by"),
        ({"mixing_with": ["a"], "mixing_weights": [1]}, "1 weights for 2 datasets"),
        ({"padding": "max_length"}, "needs max_length"),
        ({"padding": {"multiple_off": 8}}, "padding"),
        ({"image_std": [0.0]}, "above 0"),
        ({"validation_ratio": 1.5}, "less than 1"),
    ],
)
def test_impossible_settings(custom, message):
    with pytest.raises(SettingsError, match=message):
        generate_dataset_config(MEMORY, None, custom)


def test_a_setting_that_no_listed_step_reads_is_an_error(rows):
    with pytest.raises(SettingsError, match="mask_prompt is read by the step 'masking' only"):
        configure(rows, ["tokenization"], mask_prompt=True)


def test_objects_cannot_be_written_but_have_a_fingerprint():
    config = generate_dataset_config(MEMORY, [])
    with pytest.raises(UsageError, match="cannot be written"):
        config.to_yaml()
    assert config.fingerprint() and "list" in repr(config)


@pytest.mark.parametrize("name", ["no-such-file.jsonl", "C:\\data\\rows.jsonl"])
def test_a_name_without_data_is_refused_before_anything_is_read(name):
    with pytest.raises(SettingsError, match="no preset, file or folder"):
        generate_dataset_config(name, [])


@pytest.mark.parametrize("sample", [3, (1, 2), [0.5, 1.5]])
def test_samples_without_fields_are_an_error_that_says_so(sample):
    with pytest.raises(DataError, match=f"a sample is a {type(sample).__name__}"):
        generate_dataset_config([sample] * 3, []).open()


def test_a_function_of_the_user_is_a_dataset(tmp_path):
    (tmp_path / "mine.py").write_text("def rows():\n    return [{'text': f'row {n}'} for n in range(5)]\n")
    samples = generate_dataset_config("mine.py:rows", []).open()
    assert [sample["text"] for sample in samples] == [f"row {n}" for n in range(5)]


def test_default_steps_are_for_text_and_images_are_not_decoded_to_be_split(rows, tmp_path):
    assert set(generate_dataset_config(rows, custom_config={"tokenizer": "bytes"}).open()[0]) == {"input_ids", "labels"}
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / name / f"{number}.png")
    damaged = tmp_path / "images" / "dog" / "4.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    config = generate_dataset_config(str(tmp_path / "images"), custom_config={"validation_ratio": 0.2})
    train, validation = config.open("train"), config.open("validation")
    assert len(train) == 8 and sorted(validation.strata()) == ["cat", "dog"]
    assert config.open(None)[0]["image"].shape == (8, 8, 3)
