# SPDX-License-Identifier: Apache-2.0
"""One measurement of bench/onnx.py, in a process of its own: a question as JSON in, the answer as a line of JSON out.

    python -P bench/onnx_tasks/_worker.py '{"do": "quantize", "side": "nncf", "variant": "nncf", "task": "mrz", …}'

`-P` keeps this folder out of the path, and bench/ goes to its end: bench/onnx.py must not hide the package onnx.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

import onnx_tasks

GIGABYTE = 2**30


def quantize(
    side: str, variant: str, task: str, out: str, samples: int | None, memory_cap: int | None = None
) -> dict[str, Any]:
    """Seconds and memory of quantizing a model, from its file to a file.

    Loading the tool is measured apart: its import, and one convolution quantized, since some of it is loaded on use.
    """
    one = onnx_tasks.task(task)
    calibration = one.calibration[:samples]
    if memory_cap is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_cap * GIGABYTE, memory_cap * GIGABYTE))
    start = time.perf_counter()
    tool = importlib.import_module(f"sides.onnx_{side}")
    with tempfile.TemporaryDirectory() as folder:
        tool.quantize(
            variant, convolution(Path(folder)), [{"x": np.ones((1, 3, 8, 8), np.float32)}], Path(folder, "q.onnx")
        )
    imported = time.perf_counter() - start
    measured = watched(lambda: tool.quantize(variant, one.path, calibration, Path(out)))
    return {**measured, "import_seconds": imported, "bytes": Path(out).stat().st_size}


def plain(task: str, samples: int | None) -> dict[str, Any]:
    """Seconds and memory of running the float model over the calibration set; loading counts for the memory alone."""
    one = onnx_tasks.task(task)
    calibration = one.calibration[:samples]
    import onnxruntime  # noqa: F401

    def run() -> float:
        model = onnx_tasks.session(one.path)
        start = time.perf_counter()
        for feed in calibration:
            model(feed)
        return time.perf_counter() - start

    seconds: list[float] = []
    measured = watched(lambda: seconds.append(run()))
    return {**measured, "seconds": seconds[0], "with_loading": measured["seconds"]}


def judge(task: str, paths: dict[str, str]) -> dict[str, Any]:
    """The figures of models by name, or why one does not run."""
    one, found = onnx_tasks.task(task, "final"), {}
    for name, path in paths.items():
        try:
            found[name] = one.judge(onnx_tasks.session(path))
        except Exception as failure:
            found[name] = {"failed": f"does not run: {failure}"[:200]}
    return found


def convolution(folder: Path) -> Path:
    """A model of one convolution."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy")
    weight = numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], "one", [x], [y], [weight])
    path = folder / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def latency(task: str, paths: dict[str, str], seconds: float) -> dict[str, Any]:
    """The median seconds of one inference of each of the models, in turns, 2 threads; the first of each turn is not
    counted, since it wakes the model's threads."""
    from onnx_tasks._latency import medians

    return medians(onnx_tasks.task(task), paths, seconds)


def operators(path: str) -> dict[str, Any]:
    """What ONNX Runtime really runs."""
    from onnx_tasks._operators import executed

    return executed(Path(path))


def describe(task: str) -> dict[str, Any]:
    """The float model: where it is, what its file holds, what counts."""
    import onnx

    one = onnx_tasks.task(task)
    graph = onnx.load(one.path).graph
    constants = [a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value"]
    weights = sum(tensor.ByteSize() for tensor in [*graph.initializer, *constants])
    size = one.path.stat().st_size
    return {"bytes": size, "weights": weights / size, "path": str(one.path), "title": one.title, "main": one.main}


def watched(work: Callable[[], object]) -> dict[str, Any]:
    """Seconds of some work, and how far resident memory rose above what it was before."""
    gc.collect()
    before = reset_peak()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    peak = status("VmHWM")
    return {"seconds": seconds, "grown": peak - before, "peak": peak}


def reset_peak() -> int:
    """Make the kernel forget the peak so far; the resident bytes now."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmHWM")


def status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "quantize": quantize,
    "plain": plain,
    "judge": judge,
    "latency": latency,
    "operators": operators,
    "describe": describe,
}

if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    question = json.loads(sys.argv[1])
    with contextlib.closing(answers):
        answers.write(json.dumps(ANSWERS[question.pop("do")](**question)))
