# SPDX-License-Identifier: Apache-2.0
"""Everything that is measured of a model: how good it is and how sure that is, its zeros, its bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fewbit import registry
from fewbit.data.capturing.modes import modes_kept
from fewbit.data.dataset import Dataset
from fewbit.errors import FewbitError
from fewbit.sparsity.agreement import agreement
from fewbit.sparsity.graph_answers import GraphAnswers
from fewbit.sparsity.job import Job
from fewbit.sparsity.judged import judge
from fewbit.sparsity.sizes import sizes
from fewbit.sparsity.zeros import facts, zeros_of
from fewbit.tuning import randomness
from fewbit.tuning.calling import run, to_device
from fewbit.tuning.first_look import look, try_out
from fewbit.tuning.opening import Data, as_config, for_model, open_data
from fewbit.tuning.options import Options
from fewbit.tuning.task_feed import for_task

_OF_DATA = 512
"""So many samples are enough where a model is judged by what it was made with."""


def measure(model: Any, job: Job) -> dict[str, Any]:
    """Measure a model.

    Args:
        model: an `nn.Module` or an ONNX `ModelProto`; not changed.
        job: of the call: its task and data to judge by, the dense model to compare with.

    Returns:
        `metric`: the number it is judged by, with `name`, `value`, its 95 % interval `low` to `high`, and `better`,
        `"max"` or `"min"`; none where there is nothing to judge by. `numbers`: all numbers. `samples`, and `on`: which
        data. `agreement`: how near its answers are to the dense model's. `sparsity`: zeros of all, and of each layer.
        `bytes`: `raw` and `compact`.
    """
    found: dict[str, Any] = {"metric": None, "numbers": {}, "samples": 0, "on": None, "agreement": None}
    found |= _at_its_task(model, job)
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
    task = registry.get("tasks", job.task)
    names = getattr(task, "ANSWERS", ("labels",))
    try:
        with randomness.private(0):
            module = model if isinstance(model, nn.Module) else nn.Module()
            asked = None if isinstance(model, nn.Module) else GraphAnswers(model, {*names, "labels"})
            data = for_task(_opened(module, job), task, module)
            feed = data.validation or data.train
            place = next((each.device for each in module.parameters()), torch.device("cpu"))
            if asked is None:
                look(feed, module, task, "validation" if data.validation else "training")
                first = next(feed.epoch(0))
                try_out(module, task, to_device(first.batch, place), feed.name(first.items))
            limit = None if data.validation else _OF_DATA
            answer = asked or (lambda batch: run(module, batch, names))
            losses = asked is None or bool(names)
            with modes_kept(module, evaluate=True):
                numbers, samples = judge(answer, feed, task, place=place, limit=limit, losses=losses)
    except FewbitError as error:
        job.record.note("not-judged", error.what, where=error.where)
        return {}
    on = "validation" if data.validation else "data"
    if on == "data":
        job.record.note("judged-by-data", f"nothing is kept aside: judged by {samples} samples of the data itself")
    name = job.metric if job.metric in numbers else task.METRIC.BEST[0]
    metric = None
    if name in numbers:
        better = getattr(job.use_case, "metrics", {}).get(name, task.METRIC.BEST[1])
        metric = {"name": name, **numbers[name].to_dict(), "better": better}
    every = {each: estimate.to_dict() for each, estimate in numbers.items()}
    return {"metric": metric, "numbers": every, "samples": samples, "on": on}


def _opened(model: nn.Module, job: Job) -> Data:
    """The data in its order."""
    said = {name: job.options[name] for name in ("batch_size", "workers") if job.options.get(name) is not None}
    said["shuffle"] = False
    data, validation = (
        for_model(as_config(each, job.home or model), job.task, model) for each in (job.data, job.validation)
    )
    return open_data(data, validation, Options.read(said), given=set(said), device=torch.device("cpu"))


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
