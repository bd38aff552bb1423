# SPDX-License-Identifier: Apache-2.0
"""What is done to a row once it has been read: columns chosen, chats put into one form, labels turned into numbers.

The same for reading, checking and mending; each of them decides on its own about the faults that come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fewbit.data.tables import chat
from fewbit.data.tables.coercion import coerced
from fewbit.data.tables.labels import UNLABELED, BadLabel, Labels, number_label
from fewbit.data.tables.projection import field as at
from fewbit.data.tables.table import Fault, Row


@dataclass
class Rules:
    """The way from a row to a sample.

    Args:
        chosen: the user's columns: name in the sample to dotted path in the row.
        known: columns the first rows have; a row without one of them gets null there.
        chat: the column of messages, when the layout is a chat; a row without it may have them under another name.
        label: the label column, for tasks that have one.
        labels: how its values become class numbers; without, they are numbers to predict.
        casts: the columns to cast, by name.
    """

    chosen: Mapping[str, str] | None = None
    known: tuple[str, ...] = ()
    chat: str | None = None
    label: str | None = None
    labels: Labels | None = None
    casts: Mapping[str, type] = field(default_factory=dict)

    def apply(self, row: Row) -> Row:
        """The row as a sample has it, with the faults found on the way."""
        if row.values is None:
            return row
        values = coerced(row.values, self.casts) if self.casts else row.values
        if self.chosen is not None:
            values = {name: at(values, path) for name, path in self.chosen.items()}
        elif tuple(values) != self.known:
            for name in self.known:
                values.setdefault(name, None)
        if self.chat is None and self.label is None:
            return Row(values, row.line, row.faults)
        faults = list(row.faults)
        if self.chat is not None:
            column = self._chat_column(values)
            messages, found = chat.normalised(values.pop(column, None))
            values["messages"] = messages
            faults += [Fault(code, message, row.line, field=column) for code, message in found]
        if self.label is not None:
            values[self.label] = self._label(at(values, self.label), row, faults)
        return Row(values, row.line, tuple(faults))

    def _chat_column(self, values: Mapping[str, Any]) -> str:
        """Where this row has its chat: files put together from several call it by several names."""
        assert self.chat is not None
        others = (name for name in chat.COLUMNS if chat.is_chat(values.get(name)))
        return self.chat if values.get(self.chat) is not None else next(others, self.chat)

    def _label(self, value: Any, row: Row, faults: list[Fault]) -> Any:
        try:
            return self.labels.encode(value) if self.labels is not None else number_label(value)
        except BadLabel as error:
            faults.append(Fault(error.code, str(error), row.line, field=self.label))
            return UNLABELED
