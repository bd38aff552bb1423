# SPDX-License-Identifier: Apache-2.0
"""The contract of a framework's input side: read a model's signature, and shape named arrays into its call.

accepts(model)                is this model mine? Looks at the type or the suffix, imports no framework
read(model)                   its `Signature`
feed(named, signature)        one batch, `{input name: array}`, as what the framework's call takes
feed_item(item, signature)    a ready model input as the user made it (tensor, dict, tuple …), its labels taken off
"""

from __future__ import annotations

from typing import Any, Protocol

from fewbit.data.signature import Signature


class SignatureReader(Protocol):
    """What a member of `signatures` offers."""

    def accepts(self, model: object) -> bool:
        """Whether this framework made the model."""

    def read(self, model: Any) -> Signature:
        """The model's inputs."""

    def feed(self, named: dict[str, Any], signature: Signature) -> Any:
        """A batch under input names as what the framework takes: `(args, kwargs)`, or a dict of arrays."""

    def feed_item(self, item: Any, signature: Signature) -> Any:
        """An item as it is, in the form the framework's call takes."""
