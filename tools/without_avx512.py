# SPDX-License-Identifier: Apache-2.0
"""Run a command as on an x86 processor without AVX-512 and VNNI: `python tools/without_avx512.py python -m pytest …`.

ONNX Runtime, PyTorch and OpenVINO choose their int8 kernels by the instruction `cpuid`, and have no common switch. This
script makes a copy of the environment (hard links; only changed libraries take space) in which `cpuid` is replaced by
`ud2`, an instruction of the same length that raises SIGILL. A small preloaded library handles the signal: it runs the
real `cpuid` and clears the bits of AVX-512, AVX-VNNI and AMX. Everything runs at full speed with the kernels of an
AVX2 machine, saturating u8·s8 products included. Needs gcc and objdump; the first run takes two to four minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("onnxruntime", "openvino", "torch", "numpy", "numpy.libs", "scipy", "scipy.libs")
CPUID, UD2 = b"\x0f\xa2", b"\x0f\x0b"
HANDLER = r"""
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

static void handle(int signum, siginfo_t *info, void *context)
{
    (void)signum; (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)r[REG_RIP];
    if (at[0] != 0x0f || at[1] != 0x0b) {          /* another illegal instruction: die as usual */
        signal(SIGILL, SIG_DFL);
        return;
    }
    unsigned leaf = (unsigned)r[REG_RAX], sub = (unsigned)r[REG_RCX], a, b, c, d;
    __cpuid_count(leaf, sub, a, b, c, d);
    if (leaf == 7 && sub == 0) {
        b &= ~((1u << 16) | (1u << 17) | (1u << 21) | (1u << 26) | (1u << 27) | (1u << 28) | (1u << 30) | (1u << 31));
        c &= ~((1u << 1) | (1u << 6) | (1u << 11) | (1u << 12) | (1u << 14));
        d &= ~((1u << 2) | (1u << 3) | (1u << 8) | (1u << 22) | (1u << 23) | (1u << 24) | (1u << 25));
    }
    if (leaf == 7 && sub == 1) {
        a &= ~((1u << 4) | (1u << 5) | (1u << 21) | (1u << 23));
        d &= ~((1u << 4) | (1u << 5) | (1u << 10) | (1u << 19));
    }
    if (leaf == 0xd && sub == 0)
        a &= 0x7u;                                  /* state of x87, SSE and AVX only */
    r[REG_RAX] = a; r[REG_RBX] = b; r[REG_RCX] = c; r[REG_RDX] = d;
    r[REG_RIP] += 2;
}

__attribute__((constructor)) static void install(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, 0);
}
"""


def main(command: list[str]) -> int:
    source = Path(sys.prefix)
    if not command or source == Path(sys.base_prefix):
        print(f"{__doc__}\nRun it with the interpreter of a virtual environment.", file=sys.stderr)
        return 2
    copy = masked_environment(source)
    environment = os.environ | {
        "LD_PRELOAD": str(copy / "cpuid.so"),
        "PATH": f"{copy / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(copy),
        "ATEN_CPU_CAPABILITY": "avx2",
        # pytest's fault handler would take SIGILL for itself.
        "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} -p no:faulthandler",
    }
    return subprocess.run([str(copy / "bin" / command[0]), *command[1:]], env=environment).returncode


def masked_environment(source: Path) -> Path:
    """A copy of an environment whose libraries ask a signal handler instead of the processor; made once."""
    copy = source.parent / f"{source.name}-without-avx512"
    stamp = copy / "made-from"
    made_from = (source / ".ready").stat().st_mtime_ns if (source / ".ready").exists() else 0
    if stamp.exists() and stamp.read_text() == str(made_from):
        return copy
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-al", source, copy], check=True)
    (copy / "cpuid.c").write_text(HANDLER)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", copy / "cpuid.so", copy / "cpuid.c"], check=True)
    for package in PACKAGES:
        for library in sorted(copy.glob(f"lib/python*/site-packages/{package}/**/*.so*")):
            mask(library)
    stamp.write_text(str(made_from))
    return copy


def mask(library: Path) -> None:
    """Replace every `cpuid` in the code of a library; the file is written anew, since it is a hard link."""
    content = bytearray(library.read_bytes())
    if CPUID not in content:
        return
    text = subprocess.run(["objdump", "-d", "-w", "-F", library], capture_output=True, text=True).stdout
    offsets = code_offsets(library)
    count = 0
    for match in re.finditer(r"^ *([0-9a-f]+):\t0f a2 +\tcpuid", text, re.MULTILINE):
        at = offset_of(int(match[1], 16), offsets)
        assert content[at : at + 2] == CPUID, (library, match[0])
        content[at : at + 2] = UD2
        count += 1
    if count:
        mode = library.stat().st_mode
        library.unlink()
        library.write_bytes(content)
        library.chmod(mode)
        print(f"{library.name}: {count} places", file=sys.stderr)


def code_offsets(library: Path) -> list[tuple[int, int, int]]:
    """Address, size and file offset of each section with code."""
    table = subprocess.run(["objdump", "-h", "-w", library], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *\d+ \S+ +([0-9a-f]+) +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) .*CODE", table, re.MULTILINE)
    return [(int(address, 16), int(size, 16), int(offset, 16)) for size, address, offset in found]


def offset_of(address: int, sections: list[tuple[int, int, int]]) -> int:
    start, _, offset = next(s for s in sections if s[0] <= address < s[0] + s[1])
    return address - start + offset


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
