"""The C library's heap, told to keep what is freed: large tensors that come and go cost page faults otherwise."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT, _LARGE = 2**29, (2**26, 2**25)  # older versions take no more than 32 MiB for the second


@cache
def keep_freed_memory() -> bool:
    """Whether the heap now keeps up to 512 MiB of free memory, and tensors of up to 64 MiB (or 32) come from it.

    As it is, glibc gives such memory back to the system when a tensor is freed, and the next one takes it page by page,
    each filled with zeros: up to 40 % of the time of a small CNN's training loop. It is left alone where the user set
    it by the environment, and where the C library is another one.
    """
    if platform.libc_ver()[0] != "glibc" or any(_about_heap(name, value) for name, value in os.environ.items()):
        return False
    library = ctypes.CDLL(None)
    kept = bool(library.mallopt(_TRIM, _KEPT))
    return any(library.mallopt(_MMAP, size) for size in _LARGE) and kept


def _about_heap(name: str, value: str) -> bool:
    return name.startswith("MALLOC_") or (name == "GLIBC_TUNABLES" and "glibc.malloc." in value)
