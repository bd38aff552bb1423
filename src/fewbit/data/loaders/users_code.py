# SPDX-License-Identifier: Apache-2.0
"""Whether reading data calls code of the user's.

Such code draws from the global random generators. It gets private ones while it runs (`Loan`), which is only possible
where nobody else is using them: not in a thread beside the reader.
"""

from __future__ import annotations

from fewbit.data.plugin import FunctionSource
from fewbit.data.source import Source
from fewbit.data.steps._held import Held
from fewbit.data.views import Mapped


def runs_users_code(source: Source) -> bool:
    """Whether reading a source calls functions or objects of the user's.

    >>> from fewbit.data.opening import open_source
    >>> runs_users_code(open_source([{"x": 1}]))
    False
    """
    if isinstance(source, Held):  # its samples are there already
        return False
    if isinstance(source, Mapped | FunctionSource) or getattr(source, "_of_user", False):
        return True
    if type(source).__module__.startswith("fewbit.data.objects"):
        return bool(getattr(source, "_runs_code", True))
    beneath = [getattr(source, "inner", None), *getattr(source, "parts", ())]
    return any(runs_users_code(part) for part in beneath if isinstance(part, Source))
