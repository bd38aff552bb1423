# SPDX-License-Identifier: Apache-2.0
"""Everything that is measured of a model: how good it is and how sure that is, its zeros, its bytes."""

from __future__ import annotations

from typing import Any

from fewbit.data.dataset import Dataset
from fewbit.errors import FewbitError
from fewbit.sparsity.agreement import agreement
from fewbit.sparsity.job import Job
from fewbit.sparsity.sizes import sizes
from fewbit.sparsity.trial import open_trial
from fewbit.sparsity.zeros import facts, zeros_of
from fewbit.tuning import randomness


def measure(model: Any, job: Job) -> dict[str, Any]:
    """Measure a model.

    Args:
        model: an `nn.Module` or an ONNX `ModelProto`; not changed.
        job: of the call: its task and data to judge by, the dense model to compare with.

    Returns:
        `metric`: the number it is judged by, with `name`, `value`, its 95 % interval `low` to `high`, and `better`,
        `"max"` or `"min"`; none where there is nothing to judge by. `numbers`: all numbers. `samples`, and `on`: which
        data. `not_judged`: if the task's number could not be told, why, as errors say it. `agreement`: how near its
        answers are to the dense model's. `sparsity`: zeros of all, and of each layer. `bytes`: `raw` and `compact`.
    """
    found: dict[str, Any] = {"metric": None, "numbers": {}, "samples": 0, "on": None}
    found |= {"not_judged": None, "agreement": None, **_at_its_task(model, job)}
    if job.calibration is not None and (model is not job.dense or not found["numbers"]):
        near = _nearness(model, job)
        if near is not None and found["numbers"]:  # what is right was said elsewhere
            near["verdict"] = near["verdict"].partition(";")[0]
        found["agreement"] = None if model is job.dense else near
        if not found["numbers"] and near is not None:
            found |= _from(near)
    return found | {"sparsity": facts(zeros_of(model)), "bytes": sizes(model)}


def _at_its_task(model: Any, job: Job) -> dict[str, Any]:
    """The numbers of the task, if there is one and data that says what is right."""
    if job.task is None or job.data is None:
        return {}
    try:
        with randomness.private(0):
            trial = open_trial(model, job)
            numbers, samples = trial.numbers()
    except FewbitError as error:
        return {"not_judged": _noted(job, error.to_dict())}
    if trial.on == "data":
        job.record.note("judged-by-data", f"nothing is kept aside: judged by {samples} samples of the data itself")
    best, way = trial.task.METRIC.BEST
    name = job.metric if job.metric in numbers or job.asked else best
    every = {each: estimate.to_dict() for each, estimate in numbers.items()}
    found: dict[str, Any] = {"metric": None, "numbers": every, "samples": samples, "on": trial.on}
    if name in every:
        better = getattr(job.use_case, "metrics", {}).get(name, way)
        return found | {"metric": {"name": name, **every[name], "better": better}}
    reason = f"{samples} samples do not tell {name}: there is nothing to count, or what is counted is not a number"
    return found | {"not_judged": _noted(job, {"what": reason, "where": trial.on})}


def _noted(job: Job, why: dict[str, str | None]) -> dict[str, str | None]:
    """Why a model was not judged, in the record once, whatever number of times it was tried."""
    if not any(line["what"] == "not-judged" and line["reason"] == why["what"] for line in job.record.lines):
        job.record.note("not-judged", str(why["what"]), where=why["where"])
    return why


def _nearness(model: Any, job: Job) -> dict[str, Any] | None:
    try:
        with randomness.private(0):
            data = job.calibration if isinstance(job.calibration, Dataset) else Dataset(job.calibration)
            return agreement(job.dense, model, data, samples=job.samples)
    except FewbitError as error:
        job.record.note("not-compared", error.what, where=error.where)
        return None


def _from(near: dict[str, Any]) -> dict[str, Any]:
    """What to judge by where there is no task: accuracy where there are labels, else the dense model's answers."""
    if "accuracy" in near:
        name, figure = "accuracy", near["accuracy"]["compressed"]
    elif "agreement" in near:
        name, figure = "agreement", near["agreement"]
    else:
        name, figure = "error", near["error"]
    metric = {"name": name, **figure, "better": "min" if name == "error" else "max"}
    return {"metric": metric, "numbers": {name: figure}, "samples": near["samples"], "on": "calibration"}
