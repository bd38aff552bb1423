# SPDX-License-Identifier: Apache-2.0
"""Worker processes start, or say in one error why they cannot and what to do (claim 3.16)."""

import subprocess
import sys
import types

import pytest

from fewbit.data.loading.workers import check_workers
from fewbit.errors import UsageError

SCRIPT = """
from fewbit.data.loading import device_aware_data_loading, generate_dataset_config

def collator(samples):
    return [sample["text"] for sample in samples]

def run(method, collate=collator, steps=()):
    custom = {"batch_size": 4, "workers": 1, "start_method": method}
    config = generate_dataset_config([{"text": f"row {n}"} for n in range(8)], list(steps), custom)
    print(sorted(sum(device_aware_data_loading(config, collate, "cpu"), [])))

"""
GUARD = "if __name__ == '__main__':\n    "
NO_GUARD = "import logging\nlogging.getLogger(__name__)\n"  # the text __name__ is no guard
LOADED_BY_HAND = (
    GUARD + "import importlib.util, sys\n"
    "    spec = importlib.util.spec_from_file_location('plugged', 'plug.py')\n"
    "    module = sys.modules['plugged'] = importlib.util.module_from_spec(spec)\n"
    "    spec.loader.exec_module(module)\n    "
)


def execute(tmp_path, how, end):
    """Run the script as a file, from standard input or by -c."""
    (tmp_path / "train.py").write_text(SCRIPT + end)
    (tmp_path / "plug.py").write_text(
        "def same(sample):\n    return sample\n\ndef collator(samples):\n    return [s['text'] for s in samples]\n"
    )
    arguments = {"file": ["train.py"], "stdin": ["-"], "-c": ["-c", SCRIPT + end]}[how]
    text = SCRIPT + end if how == "stdin" else None
    return subprocess.run(
        [sys.executable, *arguments], input=text, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("file", GUARD + "run('fork')"),
        ("file", GUARD + "run('spawn')"),
        ("file", NO_GUARD + "run('fork')"),
        ("stdin", "run('fork')"),
        ("-c", "run('fork')"),
        ("file", GUARD + "run('fork', steps=['plug.py:same'])"),
        ("file", GUARD + "run('spawn', steps=['plug.py:same'])"),
        ("file", LOADED_BY_HAND + "run('fork', module.collator)"),
    ],
)
def test_workers_that_can_start(tmp_path, how, end):
    result = execute(tmp_path, how, end)
    assert result.stdout.strip() == str([f"row {n}" for n in range(8)]), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "end", "words"),
    [
        ("file", NO_GUARD + "run('spawn')", ("train.py", "if __name__ == '__main__':")),
        ("stdin", "run('spawn')", ("<stdin>", "save the script as a file")),
        ("-c", "run('spawn')", ("notebook", ".py file")),
        ("file", LOADED_BY_HAND + "run('spawn', module.collator)", ("cannot import 'plugged'", "FILE.py:FUNCTION")),
    ],
)
def test_workers_that_cannot_start_are_one_error_with_the_fix(tmp_path, how, end, words):
    result = execute(tmp_path, how, end)
    assert result.returncode == 1 and result.stderr.count("Traceback") == 1, result.stderr
    for word in ("[workers]", "workers=0", *words):
        assert word in result.stderr, result.stderr


def test_what_is_sent_must_be_picklable():
    assert check_workers(lambda: None, "fork") == "fork"
    assert check_workers({"a": [1, 2], "collator": len}, "spawn") == "spawn"
    with pytest.raises(UsageError, match="cannot be sent to a worker") as caught:
        check_workers(lambda: None, "spawn")
    assert "workers=0" in caught.value.hint


def test_a_module_that_only_this_process_knows_is_named(monkeypatch):
    module = types.ModuleType("loaded_by_hand")
    exec("def collator(samples):\n    return samples", vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, "loaded_by_hand", module)
    with pytest.raises(UsageError, match="cannot import 'loaded_by_hand'"):
        check_workers([module.collator, module.collator], "spawn")
