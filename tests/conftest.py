# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Every test gets a cache of its own: none reads or fills the developer's."""
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path_factory.mktemp("cache")))
