# SPDX-License-Identifier: Apache-2.0
"""The configuration: frozen, written and read back, every mistake at once (claims 3.4 and 3.10)."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from fewbit.data.loading import DatasetConfig, generate_dataset_config
from fewbit.errors import UsageError
from fewbit.settings import SettingsError

ROWS = [{"prompt": f"{n} + 1?", "completion": str(n + 1)} for n in range(20)]
STEPS = ["tokenization", "masking", "truncation", "padding"]


@pytest.fixture
def rows(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def config(rows, steps=STEPS, **custom):
    return generate_dataset_config(str(rows), steps, {"tokenizer": "bytes", **custom})


def problems(*arguments):
    with pytest.raises(SettingsError) as caught:
        generate_dataset_config(*arguments)
    return dict(caught.value.problems)


def test_a_configuration_comes_back_from_yaml_and_json(rows):
    made = config(rows, max_length=64, padding={"multiple_of": 8}, seed=3, batch_size=4)
    assert DatasetConfig.from_yaml(made.to_yaml()) == made == DatasetConfig.from_yaml(made.to_json())
    assert made.to_dict()["custom_config"] == {
        "tokenizer": "bytes", "max_length": 64, "padding": {"multiple_of": 8}, "seed": 3, "batch_size": 4,
    }  # fmt: skip
    assert made.fingerprint() == DatasetConfig.from_yaml(made.to_yaml()).fingerprint() != config(rows).fingerprint()


def test_the_fingerprint_is_the_same_in_another_process(rows):
    made = config(rows)
    code = (
        "import sys; from fewbit.data.loading import DatasetConfig; "
        "print(DatasetConfig.from_yaml(sys.stdin.read()).fingerprint())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], input=made.to_yaml(), capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == made.fingerprint()


def test_arguments_mapping_and_files_are_the_same(rows, tmp_path):
    made = config(rows, max_length=7)
    (tmp_path / "settings.yaml").write_text("tokenizer: bytes\nmax_length: 7\n")
    (tmp_path / "settings.json").write_text('{"tokenizer": "bytes", "max_length": 7}')
    for file in ("settings.yaml", "settings.json"):
        assert generate_dataset_config(str(rows), STEPS, tmp_path / file) == made
    (tmp_path / "whole.yaml").write_text(made.to_yaml())
    assert generate_dataset_config(tmp_path / "whole.yaml") == made == generate_dataset_config(made.to_dict())


def test_it_cannot_be_changed_but_replaced(rows):
    made = config(rows)
    with pytest.raises(ValidationError):
        made.dataset_name = "other"
    longer = made.replace(max_length=9)
    assert longer.custom_config.max_length == 9 and made.custom_config.max_length is None
    assert longer.preprocessing_steps == made.preprocessing_steps
    assert "max_length=9" in repr(longer)


def test_all_mistakes_come_at_once_with_what_was_meant():
    with pytest.raises(SettingsError) as caught:
        generate_dataset_config("gsm8", ["padding", "tokenisation", "tokenization"], {"max_lenght": 5, "seed": "x"})
    text = str(caught.value)
    assert "5 errors" in text and "did you mean 'gsm8k'?" in text and "did you mean 'tokenization'" in text
    assert "'padding' must come after 'tokenization'" in text and "did you mean 'max_length'" in text
    wrong = problems("imdb", ["tokenization"], {"max_lenght": 5, "seed": "x", "batch_size": 0})
    assert "did you mean 'max_length'" in wrong["custom_config.max_lenght"]
    assert "got 'x'" in wrong["custom_config.seed"] and "got 0" in wrong["custom_config.batch_size"]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (["padding", "tokenization"], "'padding' must come after 'tokenization'"),
        (["masking"], "'masking' needs 'tokenization'"),
        (["tokenization", "tokenization"], "listed twice"),
        (["tokenization", "augmentation"], "'tokenization' must come after 'augmentation'"),
        ("tokenization", "expected"),
        ([3], "expected"),
    ],
)
def test_steps_that_cannot_be(rows, steps, text):
    with pytest.raises(SettingsError, match=text):
        generate_dataset_config(str(rows), steps, {"tokenizer": "bytes"})


def test_a_setting_that_no_step_reads_is_an_error(rows):
    with pytest.raises(SettingsError, match="mask_prompt is read by the step 'masking' only"):
        generate_dataset_config(str(rows), ["tokenization"], {"tokenizer": "bytes", "mask_prompt": True})
    with pytest.raises(SettingsError, match="data_path: unknown setting"):
        config(rows, data_path="x")


@pytest.mark.parametrize(
    ("custom", "text"),
    [
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
def test_settings_that_contradict_one_another(custom, text):
    with pytest.raises(SettingsError, match=text):
        generate_dataset_config([{"text": "a"}], None, custom)


def test_packing_and_mixing_say_what_they_need(rows):
    with pytest.raises(SettingsError, match="packing needs max_length"):
        config(rows, ["tokenization", "packing"])
    with pytest.raises(SettingsError, match="at least one dataset"):
        config(rows, ["mixing"])


def test_objects_have_no_name_to_be_written_by():
    made = generate_dataset_config([{"text": "a"}], [])
    with pytest.raises(UsageError, match="cannot be written"):
        made.to_yaml()
    assert made.fingerprint() and "list" in repr(made)


def test_a_name_that_nothing_has():
    assert "no preset, file or folder" in problems("no-such-file.jsonl", [])["dataset_name"]
    assert "no preset, file or folder" in problems("C:\\data\\rows.jsonl", [])["dataset_name"]


def test_the_users_own_reader_stands_for_a_dataset(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def rows():\n    return [{'text': f'row {n}'} for n in range(5)]\n")
    made = generate_dataset_config(f"{own}:rows", [])
    assert [sample["text"] for sample in made.open("train")] == [f"row {n}" for n in range(5)]


def test_steps_are_the_presets_by_default_and_none_for_images(rows, tmp_path):
    from PIL import Image

    assert set(generate_dataset_config(str(rows), custom_config={"tokenizer": "bytes"}).open()[0]) == {
        "input_ids",
        "labels",
    }
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / name / f"{number}.png")
    broken = tmp_path / "images" / "dog" / "4.png"
    broken.write_bytes(broken.read_bytes()[:40])
    made = generate_dataset_config(str(tmp_path / "images"), custom_config={"validation_ratio": 0.2})
    assert len(made.open(None)) == 10  # nothing is decoded to be counted
    held_out = made.open("validation")
    assert len(made.open("train")) == 8 and sorted(held_out.strata()) == ["cat", "dog"]
    assert made.open(None)[0]["image"].shape == (8, 8, 3)
