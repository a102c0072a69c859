"""The workloads whose result is a rate, a file each."""

from benchmarks.workload import Workload
from benchmarks.workloads.w1 import W1
from benchmarks.workloads.w2 import W2
from benchmarks.workloads.w3 import W3, W3_MANY, W3_MANY_ZIPF, W3_ZIPF
from benchmarks.workloads.w4 import W4_10, W4_60
from benchmarks.workloads.w6 import W6
from benchmarks.workloads.w7 import W7, W7_JSON, W7_TEXT, W7_TEXT_MANY

_ALL = (W1, W2, W3, W3_ZIPF, W3_MANY, W3_MANY_ZIPF, W4_10, W4_60, W6, W7, W7_JSON, W7_TEXT, W7_TEXT_MANY)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
QUICK = ("W1", "W2", "W3", "W6")
