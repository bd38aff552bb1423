# SPDX-License-Identifier: Apache-2.0
import pytest

from fewbit import Config
from fewbit.config.run_settings import QuantizeSettings, read_settings
from fewbit.errors import UsageError

OPTIONS = ["preset", "samples", "ignore"]


def test_a_file_holds_options_and_settings(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("preset: w4a16\nbias_correction: fast\nquantization:\n  exclude: [lm_head]\n")
    options, settings = read_settings(path, OPTIONS, {"samples": "64", "quantization.min_kv_scale": "0.5"})
    assert options == {"preset": "w4a16", "samples": 64} and settings.bias_correction == "fast"
    assert settings.quantization == Config(exclude=["lm_head"], min_kv_scale=0.5)
    assert QuantizeSettings.from_yaml(settings.to_yaml()) == settings


def test_a_configuration_alone(tmp_path):
    config = Config({"weight": {"dtype": "int8"}}, exclude=["head"])
    for given in (config, config.to_dict(), config.save(tmp_path / "c.json")):
        assert read_settings(given, OPTIONS) == ({}, QuantizeSettings(quantization=config))
    assert read_settings(None, OPTIONS) == ({}, QuantizeSettings())


def test_algorithms_and_observers_are_names():
    _, settings = read_settings({"rescale": "gptq", "activation_observer": "PerTensorMSEObserver"}, OPTIONS)
    assert settings.rescale == ("gptq",) and settings.activation_observer == "mse"


@pytest.mark.parametrize(
    ("config", "assignments", "texts"),
    [
        ({"presett": "w4a16"}, {}, ["unknown setting 'presett'", "preset"]),
        ({"accuracy_level": 9, "exact": 1}, {}, ["accuracy_level", "exact"]),
        ({"bias_corection": "fast", "accuracy_level": 9}, {}, ["bias_correction", "less than or equal to 4"]),
        ({}, {"preset.a": "1", "x": "["}, ["YAML"]),
        ({"preset": "a"}, {"preset.a": "1"}, ["no settings inside"]),
        ({"quantization": {"exclud": []}}, {}, ["quantization.exclud", "exclude"]),
    ],
)
def test_errors_come_at_once_with_near_names(config, assignments, texts):
    with pytest.raises(UsageError) as caught:
        read_settings(config, OPTIONS, assignments)
    assert all(text in str(caught.value) for text in texts)
