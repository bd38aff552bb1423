# SPDX-License-Identifier: Apache-2.0
"""Hooks on a live module: it keeps its class, parameters and outputs, and afterwards it is as it was before.

Inputs are copied before the call, because a module may change them in place, and kept after it, so that a call that
fails leaves no sample.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fewbit.data.capture.samples import Array, BatchAxis, is_array, leaves, to_array
from fewbit.data.inputs.modules import is_module, unwrap
from fewbit.errors import DataError, UsageError, plural

_COMPILED = "_compiled_call_impl"
Arguments = tuple[Any, ...]


class Recorder:
    """Records the outermost calls of a module while it is entered; may be entered again.

    Args:
        module: a `torch.nn.Module`.
        keep: takes each sample.
        names: of the inputs in the samples; by default those of `forward`'s parameters.

    Attributes:
        left_out: arguments that are in no sample, with the reason.
    """

    def __init__(self, module: Any, keep: Callable[[dict[str, Array]], None], names: Sequence[str] | None = None):
        if not is_module(module) or not inspect.isroutine(module.forward):
            raise UsageError(
                f"a {type(module).__name__} is recorded only as a torch.nn.Module", code="model-type", param="model",
                expected="a module that is neither scripted nor exported", hint="the module it was made from",
            )  # fmt: skip
        self.left_out: dict[str, str] = {}
        self._module, self._keep, self._names = module, keep, names
        self._signature = inspect.signature(unwrap(module).forward)
        self._batch_axis = BatchAxis()
        self._depth = 0
        self._waiting: list[dict[str, Array]] = []
        self._handles: list[Any] = []
        self._compiled: Any = None

    def __enter__(self) -> Recorder:
        module, self._depth = self._module, 0
        # After the user's own hooks: what those make of the inputs is what `forward` receives.
        self._handles = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, with_kwargs=True),
            module.register_forward_hook(self._always, with_kwargs=True, always_call=True),
        ]
        self._compiled = module.__dict__.pop(_COMPILED, None)  # a compiled call would trace into the hooks
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        if self._compiled is not None:
            self._module.__dict__[_COMPILED] = self._compiled
        self._handles, self._waiting, self._compiled = [], [], None

    def _before(self, module: Any, args: Arguments, kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth == 1:
            self._waiting = self._samples(args, kwargs)

    def _after(self, module: Any, args: Arguments, kwargs: dict[str, Any], result: Any) -> None:
        if self._depth == 1:
            for sample in self._waiting:
                self._keep(sample)

    def _always(self, module: Any, args: Arguments, kwargs: dict[str, Any], result: Any) -> None:
        self._depth = max(self._depth - 1, 0)  # a hook of the user may have failed before `_before` was called

    def _samples(self, args: Arguments, kwargs: Mapping[str, Any]) -> list[dict[str, Array]]:
        try:
            arguments = self._arguments(args, kwargs)
        except TypeError:
            return []  # `forward` will say what is wrong with the call
        arrays: dict[str, Array] = {}
        for argument, value in arguments.items():
            for name, leaf in leaves(argument, value):
                if is_array(leaf):
                    arrays[name] = to_array(name, leaf)
                elif leaf is not None:
                    self.left_out[name] = f"{type(leaf).__name__}: {repr(leaf)[:80]}"
        if not any(array.ndim for array in arrays.values()):
            raise DataError(
                "a call without tensors", code="capture-empty", where=f"forward{self._signature}",
                expected="at least one tensor", hint="call the model with its inputs",
            )  # fmt: skip
        if self._names is not None:
            renamed = match_names(list(arrays), self._names)
            self.left_out |= {name: "not among the names" for name in arrays if name not in renamed}
            arrays = {renamed[name]: array for name, array in arrays.items() if name in renamed}
        return self._batch_axis.split(arrays)

    def _arguments(self, args: Arguments, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, by parameter; `input_1` and so on for `*args`."""
        named: dict[str, Any] = {}
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                named |= {f"input_{position}": item for position, item in enumerate(value, len(named))}
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            else:
                named[name] = value
        return named


def match_names(inputs: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The name each input is stored under: its own if that is among `names`, the other inputs get the rest in order.

    If every name is an input's own, other inputs are left out: a model that was exported often takes no `labels`.

    >>> match_names(["x", "mask"], ["pixels", "mask"]), match_names(["x", "labels"], ["x"])
    ({'mask': 'mask', 'x': 'pixels'}, {'x': 'x'})
    """
    unmatched = [name for name in inputs if name not in names]
    free = [name for name in names if name not in inputs]
    if unmatched and free and len(unmatched) != len(free):
        raise UsageError(
            f"{plural(len(free), 'name')} ({', '.join(free)}) for"
            f" {plural(len(unmatched), 'input')} ({', '.join(unmatched)})",
            code="names-count", param="names", expected=f"names for {', '.join(inputs)}",
            hint=f"{{names={','.join(inputs)}}}",
        )  # fmt: skip
    return {name: name for name in inputs if name in names} | dict(zip(unmatched, free))


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule gets its own training flag back."""
    flags = [(inner, inner.training) for inner in module.modules()]
    try:
        with sys.modules["torch"].no_grad():  # there is no module without torch
            with suppress(NotImplementedError):  # an exported program has one mode only
                module.eval()
            yield
    finally:
        for inner, training in flags:
            inner.training = training
