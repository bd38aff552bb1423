# SPDX-License-Identifier: Apache-2.0
"""Hooks on a live module: it keeps its class, its parameters and their names, and gets everything back."""

from __future__ import annotations

from typing import Any

from fewbit.data.capturing.recorder import Batch, Recorder
from fewbit.errors import UsageError


class Listener:
    """Listens to the outermost calls of one module.

    Args:
        module: a `torch.nn.Module`.
        recorder: gets what the module receives.
        run_forward: `False` puts a `forward` in its place that does nothing and returns `None`.
    """

    def __init__(self, module: Any, recorder: Recorder, *, run_forward: bool = True):
        self._module = module
        self._recorder = recorder
        self._run_forward = run_forward
        self._handles: list[Any] = []
        self._set_aside: dict[str, Any] = {}
        self._depth = 0
        self._batch: Batch | None = None

    def attach(self) -> None:
        """Put the hooks on.

        They come after the user's own: what those make of the inputs is what `forward` receives.
        """
        module = self._module
        try:
            self._handles = [
                module.register_forward_pre_hook(self._before, with_kwargs=True),
                module.register_forward_hook(self._after, with_kwargs=True),
                module.register_forward_hook(self._always, with_kwargs=True, always_call=True),
            ]
        except RuntimeError as error:  # a ScriptModule
            self.detach()
            raise UsageError(
                f"a {type(module).__name__} takes no hooks: {error}", try_="capture the module it was made from"
            ) from error
        # A compiled call would trace into the hooks; while they are on, the module runs uncompiled.
        self._set_aside_attribute("_compiled_call_impl")
        if not self._run_forward:
            self._set_aside_attribute("forward")
            module.__dict__["forward"] = _nothing

    def _set_aside_attribute(self, name: str) -> None:
        if name in self._module.__dict__:
            self._set_aside[name] = self._module.__dict__.pop(name)

    def detach(self) -> None:
        """Take the hooks off and put back what was set aside; harmless when done twice."""
        for handle in self._handles:
            handle.remove()
        if self._handles and not self._run_forward:
            self._module.__dict__.pop("forward", None)
        self._module.__dict__.update(self._set_aside)
        self._handles, self._set_aside, self._batch, self._depth = [], {}, None, 0

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth == 1:
            self._batch = None
            self._batch = self._recorder.take(args, kwargs)

    def _after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._depth == 1 and self._batch is not None:
            batch, self._batch = self._batch, None
            self._recorder.keep(batch, result)

    def _always(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._batch is not None:
            self._recorder.failed += 1
            self._batch = None


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
