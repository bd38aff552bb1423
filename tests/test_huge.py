# SPDX-License-Identifier: Apache-2.0
"""Files no machine could hold in memory: a finding, in bounded memory."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import fewbit
report = fewbit.check_dataset(sys.argv[1])
first = dict(next(iter(fewbit.open_dataset(sys.argv[1]))))
# ru_maxrss of a child begins with its parent's; this counts from the start of the program
peak = next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"counts": report.counts, "first": first, "peak_mb": peak, "where": str(report.errors[0].place)}))
"""
FIRST = {"jsonl": b'{"text": "a"}\n', "json": b'[{"text": "a"},\n', "csv": b"text,label\na,1\n"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize(("kind", "size"), [("jsonl", 10 << 30), ("json", 2 << 30), ("csv", 2 << 30)])
def test_a_line_without_an_end_is_a_finding_in_bounded_memory(tmp_path, kind, size):
    path = tmp_path / f"train.{kind}"
    with path.open("wb") as file:
        file.write(FIRST[kind])
        file.truncate(size)
    if path.stat().st_blocks * 512 > size // 2:
        pytest.skip("this file system keeps no sparse files")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True, env={**os.environ}
    )
    found = json.loads(done.stdout)
    assert found["counts"]["row-too-long"] == 1 and found["where"].startswith(f"train.{kind}:")
    assert found["first"]["text"] == "a"
    assert found["peak_mb"] < 400, found
