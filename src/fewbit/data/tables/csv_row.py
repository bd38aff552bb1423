# SPDX-License-Identifier: Apache-2.0
"""One record of a CSV file as a row: its values under the columns' names, and every fault in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fewbit.data import limits
from fewbit.data.tables.csv_blocks import Odd
from fewbit.data.tables.csv_cast import Cast, Value
from fewbit.data.tables.csv_record import Record, parse
from fewbit.data.tables.table import Fault, Row


class RowReader:
    """Makes rows of records.

    Args:
        names: the columns.
        delimiter: one character.
        casts: the declared types, by column; the rest stays text.
        shift: bytes of the file that lie before its text, for the offsets in faults.
    """

    def __init__(self, names: Sequence[str], delimiter: str, casts: Mapping[str, Cast], shift: int = 0):
        self.names = list(names)
        self.delimiter = delimiter
        self.casts = dict(casts)
        self.shift = shift
        self._most = 2 * len(self.names) + 1024

    def odd(self, odd: Odd) -> Row:
        """The row of a record that came alone."""
        if odd.quote_line is not None:
            message = f"the quote opened on line {odd.quote_line} is never closed"
            fault = Fault("quote-unclosed", message, odd.quote_line, odd.offset + self.shift)
            return Row(None, odd.line, (fault,))
        if odd.data is None:
            message = f"the row is longer than {limits.ROW_BYTES:,} bytes"
            return Row(None, odd.line, (Fault("row-too-long", message, odd.line, odd.offset + self.shift),))
        return self.row(odd.data, odd.line, odd.offset)

    def row(self, data: bytes, line: int, offset: int) -> Row:
        """The row of one record.

        Args:
            data: its bytes without the line end.
            line: the line it begins on.
            offset: where it begins in the text.
        """
        faults: list[Fault] = []
        try:
            text = data.decode()
        except UnicodeDecodeError as wrong:
            text = data.decode(errors="replace")
            message = f"byte 0x{data[wrong.start]:02x} is not UTF-8: {wrong.reason}"
            before = data[: wrong.start]
            at = line + before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n")
            faults.append(Fault("bad-encoding", message, at, offset + self.shift + wrong.start))
        if "\0" in text:
            place = offset + self.shift + data.index(0)
            faults.append(Fault("nul-byte", "the row holds a NUL byte", line, place))
        record = parse(text, self.delimiter, self._most)
        if record.stray is not None or record.early is not None:
            faults += self._quotes(record, line)
        fields = record.fields
        if len(fields) != len(self.names):
            faults.append(self._ragged(fields, line))
        values: dict[str, Value | None] = dict(zip(self.names, fields))
        if self.casts:
            faults += self._cast(values, line)
        for name in self.names[len(fields) :]:
            values[name] = None if name in self.casts else ""
        return Row(values, line, tuple(faults))

    def _quotes(self, record: Record, line: int) -> list[Fault]:
        faults = []
        if record.early is not None:
            name, value = self._named(record, record.early)
            faults.append(Fault("quote-early", f"text follows a closing quote, read as {value}", line, field=name))
        if record.stray is not None:
            name, value = self._named(record, record.stray)
            faults.append(Fault("quote-stray", f"a quote stands inside the bare field {value}", line, field=name))
        return faults

    def _named(self, record: Record, index: int) -> tuple[str | None, str]:
        value = record.fields[index]
        return (self.names[index] if index < len(self.names) else None), shown(value)

    def _ragged(self, fields: Sequence[str], line: int) -> Fault:
        found, wanted = len(fields), len(self.names)
        if found < wanted:
            message = f"the row has {found} of {wanted} fields; {self.names[found]!r} is the first that is missing"
            return Fault("row-short", message, line, field=self.names[found])
        if found > self._most:
            return Fault("row-long", f"the row has more than {self._most} fields, the header {wanted}", line)
        extra = fields[wanted:]
        if not any(extra):
            return Fault("trailing-delimiter", f"the row ends in {len(extra)} delimiter(s) too many", line)
        message = f"the row has {found} fields, the header {wanted}; the first too many is {shown(extra[0])}"
        return Fault("row-long", message, line)

    def _cast(self, values: dict[str, Value | None], line: int) -> list[Fault]:
        faults = []
        for name, cast in self.casts.items():
            text = values.get(name)
            if isinstance(text, str):
                try:
                    values[name] = cast.read(text)
                except ValueError:
                    faults.append(Fault("bad-cast", f"{shown(text)} is not {cast.name}", line, field=name))
                    values[name] = None
        return faults


def shown(text: str, most: int = 40) -> str:
    """A value in a message, cut to a readable length."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")
