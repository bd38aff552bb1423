# SPDX-License-Identifier: Apache-2.0
import os

import pytest
from hypothesis import settings

# Small tensors are faster with one thread, and a busy machine does not slow them down twentyfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, so that nothing is flaky; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Every test gets a cache of its own: none reads or fills the developer's."""
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path_factory.mktemp("cache")))
