"""Slots as threads of a single process: for a first job, for tests, for a laptop without Java.

    from runtime.launch.local import run_local
    run_local(flow, parallelism=2, storage="/tmp/counts")

Slots are not isolated: a crash of a slot's code is an exception, not a dead process.
"""

import threading
from typing import Final

import structlog

from runtime.clock import SystemClock
from runtime.connectors.epochs import no_stage_error
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import FixedDelay, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import parse_folder
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import WeirError
from runtime.io.logs import traceback_text
from runtime.io.memory.exchange import MemoryExchange, MemoryHub
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.savepoints import manifest_at
from runtime.io.store import open_store, storage_uri
from runtime.kernels.loading import native
from runtime.launch.member import RunsSlot, StartSlot, serve_slots
from runtime.launch.slot_pool import SLOT_EXIT_TIMEOUT_S, SlotPool, SlotPoolLauncher, StartMember
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.shared_folders import check_inputs
from runtime.operators.arguments import check_folder
from runtime.ports import Exchange, ExchangeListener, HasStandingStage, SnapshotStore, UsesFolders
from runtime.slot.slot import SlotConfig, open_slot

STOP_TIMEOUT_S: Final = 10.0

log = structlog.get_logger()


class LocalLauncher(SlotPoolLauncher):
    """Implements `launcher.Launcher` with threads.

    Args:
        exit_timeout_s: how long slots have to exit after `Shutdown`.
        stop_timeout_s: how long each thread of a pool has to end.
    """

    def __init__(self, exit_timeout_s: float = SLOT_EXIT_TIMEOUT_S, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        super().__init__(exit_timeout_s)
        self._stop_timeout_s = stop_timeout_s
        self._hub = MemoryHub()
        self._threads: dict[int, threading.Thread] = {}  #: by member

    @property
    def loss(self) -> str:
        return ""

    @property
    def host(self) -> str:
        return "127.0.0.1"

    def open(self, pool: SlotPool, job: CompiledJob) -> StartMember:
        native()  # before the slots connect: the first compilation on a machine takes longer than a heartbeat may

        def start(number: int) -> None:
            arguments, name = (pool, number, job), f"member-{number}"
            thread = threading.Thread(target=self.run_member, args=arguments, name=name, daemon=True)
            thread.start()
            self._threads[number] = thread

        return start

    def kill_member(self, number: int) -> None:
        """Gives a thread up: it cannot be ended, and its slot is fenced."""
        self._threads.pop(number, None)

    def end_members(self) -> None:
        for thread in self._threads.values():
            thread.join(self._stop_timeout_s)
        self._threads.clear()

    def run_member(self, pool: SlotPool, number: int, job: CompiledJob) -> None:
        def open_in_thread(start: StartSlot) -> RunsSlot | None:
            threading.current_thread().name = f"slot-{start.slot}"
            config = SlotConfig(
                index=start.slot, token=Token(start.token), secret=start.secret, master=start.master, job=job
            )
            return open_slot(config, self.open_exchange, open_store)

        error = "it ended before it connected"
        try:
            serve_slots(pool.address, number, open_in_thread)
        except Exception as failure:
            error = repr(failure)
            log.error("a pool member failed", member=number, traceback=traceback_text(failure))
        pool.on_end(number, error)

    def open_exchange(self, slot: int, token: Token, secret: str, listener: ExchangeListener) -> Exchange:
        return MemoryExchange(self._hub, slot, token, listener, secret)


def run_local(
    flow: Dataflow,
    *,
    parallelism: int = 1,
    storage: str,
    settings: CoordinatorSettings | None = None,
    records: MemoryRunStore | None = None,
    restart: RestartStrategy | None = None,
) -> MemoryRunStore:
    """Runs a job to its end in this process. Returns its records.

    Each call is a new run from empty state, unless `records.restore_from` names a checkpoint. `storage` and the folders
    of sinks may hold files of earlier runs, whose token and checkpoint ids are lower. A run from empty state removes
    prepared and uncommitted output of earlier runs of a job of this name; their plain savepoints cannot be restored
    afterwards.

    Args:
        parallelism: number of slots, which are threads, and of the subtasks of each step without its own parallelism.
        storage: folder for checkpoints, which is created if it does not exist, or `s3://bucket/prefix`. The environment
            has the credentials of the bucket (`AWS_ACCESS_KEY_ID`, …). Each job needs a storage of its own.
        settings: when checkpoints are taken; None: the defaults of `CoordinatorSettings`.
        records: the records of the run: checkpoints, attempts, failure. `MemoryRunStore(restore_from=...)` continues
            from a checkpoint, which it names by its folder in `storage`. None: new records.
        restart: restarts after failures: `NoRestart`, `FixedDelay` or `ExponentialDelay`. None: `FixedDelay()`.

    Raises:
        JobRejected: the job cannot run, or `storage` has another form; no slot was started.
        EnvironmentFailure: `storage` cannot be listed; no slot was started.
        WeirError: the job failed, and the restart strategy gave up.
    """
    # The token is above those of all earlier runs, whose output the sinks' folders may hold.
    records = records or MemoryRunStore(token=Token(SystemClock().now_ms()))
    run_to_end(local_master(flow.compile(parallelism), storage, records, settings, restart), records)
    return records


def run_to_end(master: JobMaster, records: MemoryRunStore) -> None:
    """Runs a job master. Raises WeirError: the job failed, and the restart strategy gave up."""
    end = master.run()
    if end is not MasterExitCode.DONE or records.failure is not None:
        raise WeirError(str(records.failure["message"]) if records.failure else f"the job ended as {end.name}")


def local_master(
    job: CompiledJob,
    storage: str,
    records: MemoryRunStore,
    settings: CoordinatorSettings | None = None,
    restart: RestartStrategy | None = None,
) -> JobMaster:
    """Job master over threads, for callers that send operations while the job runs.

    Append the request to `records.operations`, then call the master's `poke()`, from any thread.
    """
    if "://" not in storage:
        check_folder("run_local", "storage", storage)
    uri = storage_uri("run_local.storage", storage)
    _check_stages(job)
    if records.restore_from is None:  # a restored source holds its listing, and its input may be gone
        check_inputs(job)
    store = open_store(uri)
    records.reserve_ids_above(*newest_ids(store, records.restore_from))
    config = MasterConfig(
        job_id=job.name,
        token=records.token,
        job=job,
        storage=uri,
        coordinator=settings or CoordinatorSettings(),
        restart=restart or FixedDelay(),
    )
    return JobMaster(config, records, store, LocalLauncher(), SystemClock())


def _check_stages(job: CompiledJob) -> None:
    """Raises JobRejected for a source that reads the folder of a PySpark stage, and has none."""
    for uid, source in job.sources.items():
        if isinstance(source, HasStandingStage) and isinstance(source, UsesFolders) and not source.folders():
            raise no_stage_error(uid, runs_in_batch=source.bounded)


def newest_ids(store: SnapshotStore, restored: str | None) -> tuple[int, int]:
    """Highest checkpoint id and token in the storage and in the savepoint to restore."""
    candidates = [parse_folder(path.split("/", 1)[0]) for path in store.list("")]
    if restored is not None:
        manifest = manifest_at(store, restored)
        candidates.append((manifest.checkpoint, manifest.token))
    ids = [numbers for numbers in candidates if numbers is not None]
    return max((checkpoint for checkpoint, _ in ids), default=0), max((token for _, token in ids), default=0)
