# SPDX-License-Identifier: Apache-2.0
"""Every test of the loader has a folder and a token cache of its own."""

import json

import pytest


@pytest.fixture(autouse=True)
def own_folder(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def write(tmp_path):
    def write_rows(rows, name="rows.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write_rows
