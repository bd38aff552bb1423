# SPDX-License-Identifier: Apache-2.0
"""What this processor does with 8-bit integers."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

_X86 = ("x86_64", "amd64", "i386", "i686")
_EXACT = frozenset(("avx512_vnni", "avx512vnni", "avx_vnni", "avxvnni", "amx_int8"))
_CPUINFO = Path("/proc/cpuinfo")


@cache
def saturates() -> bool | None:
    """Whether sums of products u8 · s8 saturate in ONNX Runtime's kernels on this processor.

    Without VNNI an x86 processor adds pairs of products in 16 bits with saturation. `None` if it is not known.
    """
    text = _CPUINFO.read_text(errors="replace") if _CPUINFO.is_file() else ""
    return lacks_vnni(platform.machine(), text)


def lacks_vnni(machine: str, cpuinfo: str) -> bool | None:
    """The same from the name of the architecture and the text of /proc/cpuinfo.

    >>> lacks_vnni("x86_64", "flags : fpu avx2"), lacks_vnni("x86_64", "flags : avx_vnni"), lacks_vnni("aarch64", "")
    (True, False, False)
    """
    if machine.lower() not in _X86:
        return False if machine else None
    flags = next((line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags")), None)
    return None if flags is None else not _EXACT.intersection(flags)
