# SPDX-License-Identifier: Apache-2.0
"""Worker processes start, or say in one error why they cannot and what to do (claim 3.16)."""

import subprocess
import sys

import pytest

from fewbit.data.loading.workers import check_workers
from fewbit.errors import UsageError

BODY = """
from fewbit.data.loading import device_aware_data_loading, generate_dataset_config
import warnings

def collator(samples):
    return [sample["text"] for sample in samples]

def run(method, collate=collator, steps=()):
    config = generate_dataset_config(
        [{"text": f"row {n}"} for n in range(8)], list(steps), {"batch_size": 4, "workers": 1, "start_method": method}
    )
    print(sorted(sum(device_aware_data_loading(config, collate, "cpu"), [])))
"""
ALL = str(sorted(f"row {n}" for n in range(8)))
GUARD = "if __name__ == '__main__':\n    run({method!r})\n"
NO_GUARD = "import logging\nlogging.getLogger(__name__)\nrun({method!r})\n"  # the text __name__ is no guard


def script(tmp_path, end, method):
    path = tmp_path / "train.py"
    path.write_text(BODY + end.format(method=method))
    return path


def execute(*arguments, text=None, cwd=None):
    return subprocess.run(
        [sys.executable, *arguments], input=text, capture_output=True, text=True, timeout=120, cwd=cwd
    )


def one_error(result, *words):
    """One error of ours: at the end of one traceback, with the fix."""
    assert result.returncode == 1 and result.stderr.count("Traceback") == 1, result.stderr
    assert "[workers]" in result.stderr and "workers=0" in result.stderr, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_guarded_script_works(tmp_path, method):
    assert ALL in execute(script(tmp_path, GUARD, method)).stdout


@pytest.mark.slow
def test_a_script_without_a_guard_works_forked_and_says_what_is_missing_otherwise(tmp_path):
    assert ALL in execute(script(tmp_path, NO_GUARD, "fork")).stdout
    one_error(execute(script(tmp_path, NO_GUARD, "spawn")), "train.py", "if __name__ == '__main__':")


@pytest.mark.slow
def test_standard_input(tmp_path):
    end = "run({method!r})\n"
    assert ALL in execute("-", text=script(tmp_path, end, "fork").read_text()).stdout
    one_error(execute("-", text=script(tmp_path, end, "spawn").read_text()), "<stdin>", "save the script as a file")


@pytest.mark.slow
def test_a_notebook_or_the_option_c(tmp_path):
    end = "run({method!r})\n"
    assert ALL in execute("-c", script(tmp_path, end, "fork").read_text()).stdout
    one_error(execute("-c", script(tmp_path, end, "spawn").read_text()), "notebook", ".py file")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_step_in_a_plug_in_file_works(tmp_path, method):
    (tmp_path / "plug.py").write_text("def shout(sample):\n    return {'text': sample['text']}\n")
    (tmp_path / "collating.py").write_text(
        "def collator(samples):\n    return [sample['text'] for sample in samples]\n"
    )
    end = f"if __name__ == '__main__':\n    run({{method!r}}, steps=['{tmp_path}/plug.py:shout'])\n"
    assert ALL in execute(script(tmp_path, end, method)).stdout


@pytest.mark.slow
def test_a_collator_from_a_file_that_was_loaded_by_hand(tmp_path):
    (tmp_path / "plug.py").write_text("def collator(samples):\n    return [sample['text'] for sample in samples]\n")
    end = (
        "if __name__ == '__main__':\n"
        "    import importlib.util, sys\n"
        f"    spec = importlib.util.spec_from_file_location('plugged', r'{tmp_path}/plug.py')\n"
        "    module = sys.modules['plugged'] = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    run({method!r}, module.collator)\n"
    )
    assert ALL in execute(script(tmp_path, end, "fork")).stdout
    one_error(execute(script(tmp_path, end, "spawn")), "cannot import 'plugged'", "FILE.py:FUNCTION")


def test_what_cannot_be_pickled_says_so():
    assert check_workers(lambda: None, "fork") == "fork"
    with pytest.raises(UsageError, match="cannot be sent to a worker") as caught:
        check_workers(lambda: None, "spawn")
    assert "workers=0" in caught.value.hint


def test_what_can_be_sent_passes():
    assert check_workers({"a": [1, 2], "collator": len}, "spawn") == "spawn"


def test_a_module_that_only_this_process_knows_is_named(monkeypatch):
    import types

    module = types.ModuleType("loaded_by_hand")
    module.collator = types.FunctionType((lambda samples: samples).__code__, {"__name__": "loaded_by_hand"}, "collator")
    module.collator.__qualname__ = "collator"
    monkeypatch.setitem(sys.modules, "loaded_by_hand", module)
    with pytest.raises(UsageError, match="cannot import 'loaded_by_hand'"):
        check_workers([module.collator, module.collator], "spawn")
