"""The workloads whose result is a rate, a file per kind of query, and files as input."""

from benchmarks.workload import Workload
from benchmarks.workloads.ads import R1, R1_JSON, R1_JSON_W0, R1_W0
from benchmarks.workloads.clicks import R6, R6_JSON, R6_JSON_W0, R6_W0
from benchmarks.workloads.files import S1, W7, W7_JSON, W7_TEXT, W7_TEXT_MANY
from benchmarks.workloads.function import W6
from benchmarks.workloads.nexmark import R2, R2_W0
from benchmarks.workloads.payments import R5, R5_ARROW, R5_W0
from benchmarks.workloads.records import R3, R3_W0
from benchmarks.workloads.running import W3
from benchmarks.workloads.tpch import R4, R4_W0
from benchmarks.workloads.windows import W1, W2

_SEQUENCE = (W1, W2, W3, W6, W7, W7_JSON, W7_TEXT, W7_TEXT_MANY, S1)
_DATASETS = (
    R1,
    R1_W0,
    R1_JSON,
    R1_JSON_W0,
    R6,
    R6_W0,
    R6_JSON,
    R6_JSON_W0,
    *R2,
    R2_W0,
    R3,
    R3_W0,
    R4,
    R4_W0,
    R5,
    R5_ARROW,
    R5_W0,
)
_ALL = (*_SEQUENCE, *_DATASETS)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
QUICK = ("W1", "W2", "W3", "W6")
