"""An attempt in the simulator: production's tasks, with channels, slots and links to the master that the world decides.

Links are FIFO per slot; the simulation loop chooses when to take a message. An abandoned attempt continues to run for a
while.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, TypeVar

from runtime.core.job.graph import JobGraph
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, SubtaskId, Token
from runtime.core.job.messages import Message
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import Decline, FollowWatermark, SubtaskReport
from runtime.core.snapshot.manifest import Manifest
from runtime.core.subtask.event_log import EventLog
from runtime.core.subtask.events import SourceAdvanced, SubtaskEvent
from runtime.errors import CorruptState, EnvironmentFailure, OperatorFailure, is_outage
from runtime.ports import SnapshotStore
from runtime.simulation.channels import FLOW, Channel
from runtime.simulation.invariants import STATE_IN_FILES, check_subtask, require
from runtime.simulation.jobs import Job
from runtime.simulation.model import ModelReader
from runtime.simulation.slots import ReportFailed, ReportStarted, Slot
from runtime.simulation.state import MAX_CHECKED_PARALLELISM, CapturedTables
from runtime.simulation.world import JOB, World
from runtime.task.deployment import Deployment
from runtime.task.source_operator import SourceOperator
from runtime.task.task import Task

T = TypeVar("T")
MAX_IDLE_WAIT_MS: Final = 500  #: as in production


class Attempt:
    """The tasks, channels and slots of the attempt with fencing token `token`."""

    def __init__(
        self,
        world: World,
        job: Job,
        graph: JobGraph,
        token: Token,
        assigned: Mapping[SubtaskId, SubtaskRestore],
        mode: CheckpointMode,
    ) -> None:
        self.world, self.job, self.graph, self.token, self.mode = world, job, graph, token, mode
        self.captured_tables = CapturedTables()
        self.remaining_steps = 10**9  #: world steps until the attempt stops running; lowered by `abandon`
        self.channels = {c: Channel(c, charged=not graph.is_feedback(c)) for c in graph.channels()}
        self.slots = {index: Slot(world) for index in range(graph.parallelism)}
        self.tasks: dict[SubtaskId, SimulatedTask] = {}
        for index, slot in self.slots.items():
            subtasks = [subtask for subtask in graph.subtasks if subtask.index == index]
            restored = [assigned.get(subtask, SubtaskRestore(subtask=subtask)) for subtask in subtasks]
            tasks = self._deployment(graph, world.storage, SlotHost(self, slot)).create_tasks(restored)
            self.tasks |= {subtask: SimulatedTask(self, slot, task) for subtask, task in tasks.items()}
        self.order = [self.tasks[subtask] for subtask in graph.subtasks]
        operators = {task.subtask: task.task.operator for task in self.order}
        sources = {subtask: each.reader for subtask, each in operators.items() if isinstance(each, SourceOperator)}
        #: of all sources that are not finished on restore
        self.readers = {subtask: each for subtask, each in sources.items() if isinstance(each, ModelReader)}
        self._held_credits: dict[frozenset[int], list[Callable[[], None]]] = {}  #: by the slots of a partition

    def _deployment(self, graph: JobGraph, store: SnapshotStore, host: "SlotHost") -> Deployment:
        return Deployment(
            job=self.job.compiled(graph, self.world, self.captured_tables.on_snapshot),
            job_id=JOB,
            token=self.token,
            mode=self.mode,
            store=store,
            host=host,
            flow=FLOW,
            compaction=self.world.compaction,
            make_queue=lambda channel, is_feedback: self.channels[channel],
        )

    def check_tables(self, manifest: Manifest) -> None:
        """Compares a recorded checkpoint, restored at some parallelism, with the tables at its barrier."""
        parallelism = 1 + manifest.checkpoint % MAX_CHECKED_PARALLELISM
        graph = self.job.graph({step.lane: parallelism for step in self.job.steps})
        host = SlotHost(self, self.slots[0])
        self.captured_tables.check(self._deployment(graph, self.world.storage.archive, host), manifest)

    def abandon(self, lingers: int) -> None:
        self.remaining_steps = lingers

    def crash(self, index: int) -> None:
        """Kills the slot's process; messages that it has sent may still arrive."""
        self.slots[index].crash()

    def part(self, slots: frozenset[int], ms: int, *, breaks: bool) -> None:
        """Holds back all messages between two slots for `ms`. `breaks`: then both find their connection broken."""
        if slots not in self._held_credits:
            self._held_credits[slots] = []
            self.world.background.add(self.world.now + ms, lambda: self._end_partition(slots, breaks=breaks))

    def _end_partition(self, slots: frozenset[int], *, breaks: bool) -> None:
        for repay in self._held_credits.pop(slots):
            repay()
        for task in self.order:
            if task.subtask.index in slots:
                task.wake()
                if breaks and task.slot.alive:
                    task.fail(f"a channel between slots {sorted(slots)} broke")

    def credits_held_for(self, channel: ChannelId) -> list[Callable[[], None]] | None:
        """The repayments that wait for the end of a partition; None if the channel's slots are connected."""
        return self._held_credits.get(frozenset((channel.source, channel.target)))

    def deliver_down(self) -> bool:
        """Delivers a message of the master to a subtask. Returns False if no message has arrived."""
        ready = [slot for slot in self.slots.values() if slot.alive and slot.down.is_ready]
        if not ready:
            return False
        subtask, event = self.world.rng.choice(ready).down.pop()
        self.tasks[subtask].on_master_event(event)
        return True

    def step(self) -> bool:
        """Runs a step of some runnable subtask. Returns False if no subtask is runnable."""
        start, now = self.world.rng.randrange(len(self.order)), self.world.now
        turns = self.order[start:] + self.order[:start]
        return any(task.step() for task in turns if task.wakes_at <= now)


class SlotHost:
    """Implements `TaskHost`: the surroundings of the tasks of a slot."""

    def __init__(self, attempt: Attempt, slot: Slot) -> None:
        self.clock = attempt.world
        self._attempt, self._world, self._slot = attempt, attempt.world, slot

    def wake(self) -> None:
        for task in self._attempt.tasks.values():
            if task.slot is self._slot:
                task.wake()

    def send(self, channel: ChannelId, message: Message) -> None:
        reader = self._attempt.readers.get(self._attempt.graph.source(channel))
        self._attempt.channels[channel].check(message, None if reader is None else reader.polled)
        self._attempt.tasks[self._attempt.graph.target(channel)].deliver(channel, message)

    def return_credit(self, channel: ChannelId, nbytes: int) -> None:
        sender = self._attempt.tasks[self._attempt.graph.source(channel)]
        if (held := self._attempt.credits_held_for(channel)) is not None:
            held.append(lambda: sender.repay(channel, nbytes))
        elif self._world.rng.random() < 0.7:
            sender.repay(channel, nbytes)
        else:
            self._world.schedule(lambda: sender.repay(channel, nbytes))

    def report(self, subtask: SubtaskId, report: SubtaskReport) -> None:
        self._slot.send_report(subtask, report)

    def run_in_background(self, subtask: SubtaskId, work: Callable[[], SubtaskEvent]) -> None:
        self._world.schedule(lambda: self._store(subtask, work), "slow_snapshot")

    def compact(self, work: Callable[[], None]) -> None:
        """Compacts state files later, perhaps after further captures. After a failure, a later snapshot compacts."""
        self._world.schedule(lambda: self._compact(work), "slow_compaction")

    def _store(self, subtask: SubtaskId, work: Callable[[], SubtaskEvent]) -> None:
        """The asynchronous part of a snapshot. A failure only declines this checkpoint."""
        lost = self._world.faults.occurs("lose_snapshot")
        if not self._slot.alive or (lost and self._world.rng.random() < 0.5):
            return
        report = work()
        if isinstance(report, Decline) and CorruptState.__name__ in report.detail:
            is_subsumed = report.checkpoint < max(self._world.ledger.recorded, default=0)  # its files may be gone
            if not is_subsumed:
                self._check_damage(f"{subtask}: {report.detail}")
        if not lost:
            self._attempt.tasks[subtask].handle(report)

    def _compact(self, work: Callable[[], None]) -> None:
        if not self._slot.alive:
            return
        try:
            work()
        except CorruptState as error:
            self._check_damage(str(error))
        except EnvironmentFailure as failure:
            self._world.note(f"{self._attempt.token}:compaction", f"compacts later: {failure}")

    def _check_damage(self, detail: str) -> None:
        """Checks an error of state. Only an abandoned attempt may miss a file: a newer attempt deletes its folders."""
        require(self._attempt.token != self._world.records.token, STATE_IN_FILES, detail)


class SimulatedTask:
    """A task whose turns, messages and failures the world decides.

    As in a slot's loop, a task without work sleeps until an event or its next timer. Each task sleeps for itself, so
    that no event of another task hides a lost wake-up.
    """

    def __init__(self, attempt: Attempt, slot: Slot, task: Task) -> None:
        self.slot, self.task, self.subtask = slot, task, task.id
        self.is_started = False
        self._attempt, self._world = attempt, attempt.world
        self.wakes_at = 0.0  #: there is no work before
        self._sleeps_without_timer = False
        self._inputs = {channel: attempt.channels[channel] for channel in task.machine.spec.inputs}
        self._outputs = [attempt.channels[channel] for channel in attempt.graph.outputs[task.id]]
        task.machine.event_log = Journal(attempt.world, f"{attempt.token}:{task.id}")

    def wake(self) -> None:
        """An event may give the task work."""
        self.wakes_at, self._sleeps_without_timer = 0.0, False

    def deliver(self, channel: ChannelId, message: Message) -> None:
        self.task.deliver(channel, message)
        self.wake()

    def repay(self, channel: ChannelId, nbytes: int) -> None:
        self.task.outputs.credits.repay(channel, nbytes)
        self.wake()

    def step(self) -> bool:
        """Starts the task, or runs a step of it. Returns False if it is not runnable."""
        machine = self.task.machine
        if not self.slot.alive or machine.ended:
            self.wakes_at = inf
            return False
        if not self.is_started:
            self.is_started = True
            self._run(self._start)
            return True
        in_flight = [
            queue
            for channel, queue in self._inputs.items()
            if queue.in_flight and machine.is_readable(channel) and self._attempt.credits_held_for(channel) is None
        ]
        if in_flight:
            self._world.rng.choice(in_flight).arrive(self._world.rng.randint(1, 3))
        did = bool(self._run(self.task.step))
        if self.slot.alive and not machine.loop.replaying:
            waiting = [c for c, queue in self._inputs.items() if queue.has_barrier_ahead and machine.is_readable(c)]
            require(not waiting, "a-barrier-waits-for-no-credit", f"{self.subtask}: {waiting}")
            if not did and self.task.outputs.credits.runnable:
                blocked = [channel for channel in self._inputs if self._is_blocked_by_end(channel)]
                require(not blocked, "a-barrier-waits-for-no-buffered-row", f"{self.subtask}: {blocked}")
        require(not (did and self._sleeps_without_timer), "no-wake-up-is-lost", self.subtask)
        if did or in_flight or self.task.is_throttled:  # a throttled source looks at its siblings
            self.wake()
        else:
            self._sleep()
        return did

    def _is_blocked_by_end(self, channel: ChannelId) -> bool:
        """Whether the end of the data waits in a channel, where barriers wait behind it."""
        machine, message = self.task.machine, self._inputs[channel].end_ahead
        return message is not None and machine.is_readable(channel) and machine.passes_held(channel, message)

    def _sleep(self) -> None:
        task = self.task
        due = [ms for ms in (task.poll_in_ms, task.timer_in_ms, task.barrier_in_ms) if ms is not None]
        self._sleeps_without_timer = not due
        self.wakes_at = self._world.now + min(due, default=MAX_IDLE_WAIT_MS)
        in_time = task.poll_in_ms is None or task.poll_in_ms <= MAX_IDLE_WAIT_MS
        require(in_time, "no-source-rests-for-longer-than-a-slot", f"{self.subtask}: {task.poll_in_ms} ms")

    def on_master_event(self, event: SubtaskEvent) -> None:
        if isinstance(event, FollowWatermark):
            self._run(lambda: self.task.follow(event))
        else:
            self._run(lambda: self.task.on_master_event(event))
        self.wake()

    def handle(self, event: SubtaskEvent) -> None:
        self._run(lambda: self.task.handle(event))
        self.wake()

    def fail(self, detail: str, *, is_outage: bool = False) -> None:
        self.slot.send_report(self.subtask, ReportFailed(detail, is_outage))
        self.slot.alive = False

    def _start(self) -> None:
        self.task.open()
        self.task.start()
        self.slot.send_report(self.subtask, ReportStarted())

    def _run(self, act: Callable[[], T]) -> T | None:
        """Runs a part of a turn. A failure of the world fails the slot, any other error is a violation."""
        for channel in self._outputs:
            channel.begin_step(self.task.outputs.credits.runnable)
        try:
            result = act()
        except EnvironmentFailure as failure:
            self.fail(str(failure), is_outage=is_outage(failure))
            return None
        except OperatorFailure as failure:
            if isinstance(failure.__cause__, EnvironmentFailure):
                self.fail(str(failure), is_outage=is_outage(failure))
                return None
            raise failure.__cause__ or failure from None
        for channel in self._outputs:
            channel.end_step()
        check_subtask(self.task.machine)
        return result


class Journal(EventLog):
    """The events of a subtask, which also become lines of the world's journal."""

    def __init__(self, world: World, origin: str) -> None:
        super().__init__()
        self._world, self._origin = world, origin

    def append(self, event: SubtaskEvent) -> None:
        super().append(event)
        if not isinstance(event, SourceAdvanced):  # after each poll; the log leaves it out
            self._world.note(self._origin, self.newest)
