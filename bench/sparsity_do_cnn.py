# SPDX-License-Identifier: Apache-2.0
"""What a process of part `cnn` of bench/sparsity.py does: train, prune, train with zeros, judge."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsity_worker import by_place, zeros_of

_nets = by_place("sparsity_nets")


def learn(
    net: str, data: str, epochs: float, limit: int | None, device: str, out: str, start: str | None, lr: float
) -> dict[str, Any]:
    """The network in float: from nothing, or on from some weights."""
    model = _nets.make(net) if start is None else _nets.opened(net, start)
    loader = _nets.Pictures(data, "train", limit).loader(training=True)
    began = time.perf_counter()
    _nets.train(model, loader, epochs, lr, device)
    seconds = time.perf_counter() - began
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, out)
    return {"seconds": seconds}


def one_shot(
    side: str, way: str, net: str, data: str, weights: str, share: float, samples: int, device: str, out: str
) -> dict[str, Any]:
    """Seconds of a side's pruning; what it made is left as the weights of the plain network."""
    model = _nets.opened(net, weights, device)
    pictures = _seen(data, samples, device)
    dense = _nets.dense_layers(model)
    tool = by_place(f"sparsity_{side}")
    with torch.no_grad():
        model(pictures)  # what is slow the first time is not the side's
    began = time.perf_counter()
    made = tool.one_shot(model, pictures, dense, way=way, share=share)
    seconds = time.perf_counter() - began
    names = _nets.make(net).state_dict()
    torch.save({name: value.detach().cpu() for name, value in made.state_dict().items() if name in names}, out)
    return {"seconds": seconds}


def aware(
    side: str, way: str, net: str, data: str, weights: str, share: float, samples: int, epochs: int,
    limit: int | None, judged: int | None, lr: float, device: str, folder: str,
) -> dict[str, Any]:  # fmt: skip
    """Seconds and accuracy of a side's training with zeros and 8 bits; its own model is judged."""
    model = _nets.opened(net, weights, device)
    pictures, plain = _seen(data, samples, device), _nets.opened(net, weights)
    loader = _nets.Pictures(data, "train", limit).loader(training=True)
    test = _nets.Pictures(data, "test", judged)
    tool = by_place(f"sparsity_{side}")
    given: dict[str, Any] = {"way": way, "share": share, "epochs": epochs}
    began = time.perf_counter()
    if side == "fewbit":  # it has a loop of its own
        made = tool.aware(model, loader, test.loader(500), Path(folder), **given)
    else:
        train = partial(_nets.train, loader=loader, epochs=epochs, lr=lr, device=device)
        made = tool.aware(model, train, pictures, _nets.dense_layers(model), **given)
    answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
    answer |= _nets.hits(made.to(device), test, device)
    if side == "fewbit":
        answer |= tool.files(Path(folder))
        answer |= {f"deployed_{name}": value for name, value in _deployed(Path(folder), test).items()}
    found: dict[str, Tensor] = tool.weights(made, pictures)
    wanted = _nets.pruned_weights(plain)
    return answer | zeros_of({name: found[name] for name in wanted}, share)


def judge(net: str, data: str, weights: str, share: float, judged: int | None, device: str) -> dict[str, Any]:
    """Accuracy of the plain network with some weights, its zeros, its bytes as they are and without the zeros."""
    from fewbit.sparsity.sizes import sizes

    model: nn.Module = _nets.opened(net, weights, device)
    answer = _nets.hits(model, _nets.Pictures(data, "test", judged), device)
    return answer | zeros_of(_nets.pruned_weights(model), share) | sizes(model.cpu())


def _seen(data: str, samples: int, device: str) -> Tensor:
    """Pictures that a side may look at, of those that the network learned from."""
    pictures: Tensor = _nets.Pictures(data, "train", samples).batch(list(range(samples)))[0]
    return pictures.to(device)


def _deployed(folder: Path, test: Any) -> dict[str, int]:
    """What ONNX Runtime makes of the file that was deployed."""
    path = folder / "deployment" / "model.onnx"
    if not path.exists():
        return {}
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    fixed = session.get_inputs()[0].shape[0]
    step = fixed if isinstance(fixed, int) else 500

    def run(batch: Tensor) -> Tensor:
        parts = [session.run(None, {name: part.numpy()})[0] for part in batch.split(step)]
        return torch.cat([torch.from_numpy(part) for part in parts])

    found: dict[str, int] = _nets.hits(run, test)
    return found
