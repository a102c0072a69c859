"""The bound on the memory of a slot's process (`slot_memory_mb`), enforced inside the process.

Without it, state that outgrows a host invokes the kernel's OOM killer, which may kill any process on it. Two fences:

- **Resident memory** (the figure of `top`, the kernel and the console) is compared with the bound ten times a second.
  Above the bound the slot reports `SlotOutOfMemory` and ends; state grows slowly enough for that.
- **RLIMIT_DATA** stops an allocation that outruns the first fence, even while it holds the interpreter's lock. It
  raises MemoryError in the operator. Its limit is `RESERVED_BYTES` above the bound: mimalloc, Arrow's allocator,
  reserves 1 GiB of address space with its first buffer, and the limit counts that.

Tried and dropped (Linux 6, 2026-11): `spark.executor.pyspark.memory` does reach forked slots, as RLIMIT_AS. A slot
with 140 MB resident has 1.4 GB of address space, 2.0 GB with eight more threads, so no useful bound can be chosen.
RLIMIT_DATA alone, without room for the reservation, failed Arrow at 438 MB of 500, and gRPC ends the process instead
of raising.
"""

import gc
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime.errors import SlotOutOfMemory
from runtime.slot.process_tuning import release_freed_memory, resident_bytes

MEGABYTE: Final = 1 << 20
CHECK_INTERVAL_S: Final = 0.1
RESERVED_BYTES: Final = 1 << 30
_STATM: Final = Path("/proc/self/statm")  #: proc(5): pages; the sixth number counts data and stacks


class MemoryWatch:
    """Compares the resident memory of this process with a bound, on a thread of its own.

    Args:
        on_exceeded: called once, on that thread, with the bytes in use after freed memory was returned to the system.
    """

    def __init__(
        self,
        bound_bytes: int,
        on_exceeded: Callable[[int], None],
        resident_bytes: Callable[[], int] = resident_bytes,
    ) -> None:
        self._bound_bytes, self._on_exceeded, self._resident_bytes = bound_bytes, on_exceeded, resident_bytes
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(CHECK_INTERVAL_S):
            if self._resident_bytes() <= self._bound_bytes:
                continue
            gc.collect()
            release_freed_memory()
            used = self._resident_bytes()
            if used > self._bound_bytes:
                self._on_exceeded(used)
                return


def limit_allocations(bound_bytes: int) -> None:
    """Sets RLIMIT_DATA of this process and its children. A stricter existing limit stays."""
    try:
        data_pages = int(_STATM.read_text().split()[5])
    except OSError:  # no Linux: resident memory is the only fence
        return
    new_limit = data_pages * resource.getpagesize() + bound_bytes + RESERVED_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [new_limit, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def bound_exceeded_error(slot: int, used_bytes: int, bound_bytes: int) -> SlotOutOfMemory:
    """Failure of a process with more resident memory than its bound."""
    used, bound = used_bytes // MEGABYTE, bound_bytes // MEGABYTE
    return SlotOutOfMemory(f"{_slot_on_host(slot)} uses {used} MB of memory, above its bound of {bound} MB. {_ADVICE}")


def allocation_failed_error(slot: int, used_bytes: int, bound_bytes: int, problem: str) -> SlotOutOfMemory:
    """Failure of an allocation (MemoryError)."""
    used, bound = used_bytes // MEGABYTE, bound_bytes // MEGABYTE
    usage = f"{_slot_on_host(slot)} uses {used} MB of memory, and an allocation beyond its bound of {bound} MB failed"
    return SlotOutOfMemory(f"{usage}: {problem}. {_ADVICE}")


def _slot_on_host(slot: int) -> str:
    return f"Slot {slot} on host {socket.gethostname()!r}"


_ADVICE: Final = "Run the job with more parallelism, so that each slot has less state, or raise `slot_memory_mb`."
