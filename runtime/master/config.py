"""Configuration of a job master."""

from dataclasses import dataclass, field
from typing import Final, Literal

from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings, RetentionPolicy, SlotTimeouts
from runtime.dataflow.plan import CompiledJob
from runtime.master.slot_wait import ShortageReports

#: Delays between attempts in an outage of storage or a service. A run of a minute resets the delay.
OUTAGE_BACKOFF: Final = ExponentialDelay(initial_ms=1_000, max_ms=60_000, multiplier=2, reset_after_ms=60_000)


@dataclass(frozen=True, kw_only=True)
class MasterConfig:
    """`storage` is the job's storage root, as slots open it; `host` is the master's address for slots."""

    job_id: str
    token: Token  #: of the first attempt
    job: CompiledJob
    storage: str
    host: str = "127.0.0.1"
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    restart: RestartStrategy = field(default_factory=FixedDelay)
    outage_backoff: ExponentialDelay = OUTAGE_BACKOFF
    heartbeat_timeout_ms: int = 10_000
    slots: SlotTimeouts = field(default_factory=SlotTimeouts)
    shortage_reports: ShortageReports = field(default_factory=ShortageReports)
    has_had_slots: bool = False  #: an earlier master of this run had slots
    retention: RetentionPolicy = RetentionPolicy(5)
    on_corrupt_checkpoint: Literal["fail", "previous"] = "fail"
    fallback_limit_ms: int | None = None  #: greatest age of a checkpoint that is restored by this policy
    allow_unmapped: bool = False  #: drop state of operators that the job lacks
    slot_memory_bytes: int | None = None  #: bound on the resident memory of each slot's process; None: unbounded
    commit_timeout_ms: int = 60_000  #: how long the last commit of an ended run is retried, except in an outage
    metadata_timeout_ms: int = 300_000  #: a metadata write, or a commit by the master, that takes longer is hung
    wait_step_s: float = 1.0  #: between two checks for a cancel while no attempt runs
