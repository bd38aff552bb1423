# SPDX-License-Identifier: Apache-2.0
"""Text as what language models take: rows, chats and plain files, tokenized, packed and cut."""

from fewbit.data.text.inputs import as_inputs
from fewbit.data.text.named import open_text

__all__ = ["as_inputs", "open_text"]
