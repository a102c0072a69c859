"""An attempt in the simulator: production's tasks, with channels, slots and links to the master that the world decides.

Links are FIFO per slot; the simulation loop chooses when to take a message. An abandoned attempt continues to run for a
while.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import inf
from typing import Final, TypeVar

from runtime.core.attempt.failover_regions import FailoverRules, RestartScope, restart_scope, restarted_inputs
from runtime.core.job.graph import JobGraph
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, SubtaskId, Token
from runtime.core.job.messages import Message
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import Decline, FollowWatermark, LogicFinished, SnapshotAnswer, SubtaskReport
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.row_numbers import ProcessedRows, RepeatedChannel
from runtime.core.subtask.batch_size import MAX_BATCH_ROWS
from runtime.core.subtask.event_log import EventLog
from runtime.core.subtask.events import SourceAdvanced, SubtaskEvent
from runtime.errors import CorruptState, EnvironmentFailure, OperatorFailure, is_outage
from runtime.ports import SnapshotStore
from runtime.simulation.channels import FLOW, Channel
from runtime.simulation.invariants import STATE_IN_FILES, check_subtask, require
from runtime.simulation.jobs import Job
from runtime.simulation.model import ModelHybridReader, ModelReader
from runtime.simulation.slots import ReportFailed, ReportStarted, Slot
from runtime.simulation.state import MAX_CHECKED_PARALLELISM, CapturedTables
from runtime.simulation.world import JOB, World
from runtime.task.deployment import Deployment
from runtime.task.source_operator import SourceOperator
from runtime.task.task import Task

T = TypeVar("T")
MAX_IDLE_WAIT_MS: Final = 500  #: as in production
SLOW: Final = 0.5  #: share of slow tasks among those before which barriers may overtake rows
PASSES: Final = 0.2  #: share of the turns before which barriers pass, where they may overtake rows
LAG: Final = 0.9  #: share of the turns that a slow task does not get


class Attempt:
    """The tasks, channels and slots of the attempt with fencing token `token`.

    Args:
        last: the last attempt; its kept slots continue in this one.
    """

    def __init__(
        self,
        world: World,
        job: Job,
        graph: JobGraph,
        token: Token,
        assigned: Mapping[SubtaskId, SubtaskRestore],
        settings: CoordinatorSettings,
        last: "Attempt | None" = None,
    ) -> None:
        self.world, self.job, self.graph, self.token, self.settings = world, job, graph, token, settings
        self.kept = {} if last is None else last.surviving_slots()  #: slots of earlier attempts that continue here
        self.captured_tables: CapturedTables = CapturedTables() if last is None else last.captured_tables
        self.remaining_steps = 10**9  #: world steps until the attempt stops running; lowered by `abandon`
        self._lingering_steps = 0  #: of the slots that are not kept, while the kept ones wait for the next attempt
        self._keeps: Mapping[int, Token] = {}  #: slots to keep
        self.channels = {c: Channel(c, charged=not graph.is_feedback(c)) for c in graph.channels()}
        self.slots = {index: Slot(world) for index in range(graph.parallelism)}
        self.hosts = {index: SlotHost(self, slot) for index, slot in self.slots.items()}
        self.tasks: dict[SubtaskId, SimulatedTask] = {}
        self.readers: dict[SubtaskId, ModelReader | ModelHybridReader] = {}
        scope = restart_scope(graph, self.failover_rules, self.slots.keys() - self.kept.keys())
        if last is not None and self._has_ended_input(last, scope):  # production fails an attempt before that
            self.kept, scope = {}, RestartScope(graph, frozenset(self.slots))
        if last is not None:
            for index in self.kept:
                self._take_over(last, index, scope)
        repeated = self._restart_inputs(scope)
        for index, slot in self.slots.items():
            subtasks = [subtask for subtask in graph.subtasks if subtask.index == index and scope.restarts(subtask)]
            restored = [assigned.get(subtask, SubtaskRestore(subtask=subtask)) for subtask in subtasks]
            deployment = self._deployment(graph, world.storage, self.hosts[index], repeated)
            surviving = {subtask: each.task for subtask, each in self.tasks.items() if subtask.index == index}
            tasks = deployment.create_tasks(restored, surviving)
            self.tasks |= {subtask: SimulatedTask(self, slot, task) for subtask, task in tasks.items()}
        self.order = [self.tasks[subtask] for subtask in graph.subtasks]
        operators = {task.subtask: task.task.operator for task in self.order}
        sources = {subtask: each.reader for subtask, each in operators.items() if isinstance(each, SourceOperator)}
        #: of all sources that are not finished on restore
        self.readers = {
            subtask: each for subtask, each in sources.items() if isinstance(each, ModelReader | ModelHybridReader)
        }
        self._held_credits: dict[frozenset[int], list[Callable[[], None]]] = {}  #: by the slots of a partition

    def _deployment(
        self, graph: JobGraph, store: SnapshotStore, host: "SlotHost", repeated: Collection[RepeatedChannel] = ()
    ) -> Deployment:
        return Deployment(
            job=self.job.compiled(graph, self.world, self.captured_tables.on_snapshot),
            job_id=JOB,
            token=self.token,
            mode=self.settings.mode,
            alignment_timeout_ms=self.settings.alignment_timeout_ms,
            store=store,
            host=host,
            flow=FLOW,
            compaction=self.world.compaction,
            make_queue=lambda channel, is_feedback: self.channels[channel],
            processed=repeated,
        )

    @property
    def failover_rules(self) -> FailoverRules:
        rules = self._deployment(self.graph, self.world.storage, self.hosts[0]).job.failover_rules
        return rules if self.settings.mode is CheckpointMode.EXACTLY_ONCE else replace(rules, numbered=frozenset())

    def check_tables(self, manifest: Manifest) -> None:
        """Compares a recorded checkpoint, restored at some parallelism, with the tables at its barrier."""
        parallelism = 1 + manifest.checkpoint % MAX_CHECKED_PARALLELISM
        graph = self.job.graph({step.lane: parallelism for step in self.job.steps})
        host = self.hosts[0]
        self.captured_tables.check(self._deployment(graph, self.world.storage.archive, host), manifest)

    def count_repeated_rows(self) -> None:
        self.world.repeated_rows += sum(task.task.outputs.repeated_rows for task in self.order)

    def abandon(self, lingers: int, keeps: Mapping[int, Token] = {}) -> None:
        """The master sends nothing more; slots run on for some steps, those in `keeps` until the next attempt."""
        self._keeps, self._lingering_steps = keeps, lingers
        self.remaining_steps = 10**9 if keeps else lingers

    def pass_step(self) -> None:
        self.remaining_steps -= 1
        self._lingering_steps -= 1
        if self._keeps and self._lingering_steps == 0:
            for index in self.slots.keys() - self._keeps.keys():
                self.slots[index].alive = False

    def surviving_slots(self) -> dict[int, Token]:
        """The kept slots that can continue in another attempt, with the token of their deployment."""
        return {
            index: token
            for index, token in self._keeps.items()
            if self.slots[index].alive
            and not any(task.task.machine.ended for task in self.order if task.slot is self.slots[index])
        }

    def _has_ended_input(self, last: "Attempt", scope: RestartScope) -> bool:
        """Whether a task that is to keep its state has read the end of an input that restarts."""
        return any(
            task.task.machine.has_ended(channel)
            for task in last.order
            if task.subtask.index in self.kept and not scope.restarts(task.subtask)
            for channel in restarted_inputs(self.graph, task.subtask, scope.everywhere)
        )

    def _take_over(self, last: "Attempt", index: int, scope: RestartScope) -> None:
        """Moves a kept slot from the last attempt; it has a new connection to the master."""
        self.hosts[index] = host = last.hosts[index]
        host.move_to(self, self.slots[index])
        for channel in last.channels:
            ends = (self.graph.source(channel), self.graph.target(channel))
            if channel.source == channel.target == index and not any(map(scope.restarts, ends)):
                self.channels[channel] = last.channels[channel]
        for task in [task for task in last.order if task.subtask.index == index]:
            last.order.remove(task)
            if scope.restarts(task.subtask):
                last.slots[index].alive = False
                task.task.close()
            else:
                task.move_to(self, self.slots[index])
                self.tasks[task.subtask] = task
        self.world.kept_slots += 1

    def _restart_inputs(self, scope: RestartScope) -> list[RepeatedChannel]:
        """Drops the messages in flight to tasks that keep their state. Returns the rows that they have processed."""
        base = self.world.bases[self.token]
        repeated: list[RepeatedChannel] = []
        for task in self.tasks.values():
            channels = restarted_inputs(self.graph, task.subtask, scope.everywhere)
            if channels and task.subtask.index not in scope.untouched_slots:
                self.world.kept_subtasks += 1
                rows = task.restart_inputs(channels)
                restored = 0 if base is None else base.checkpoint
                repeated += [each.since(restored) for each in rows]
        return repeated

    def continue_slot(self, index: int) -> None:
        """A kept slot reports what the new master does not know."""
        for task in self.order:
            if task.subtask.index == index:
                task.report_to_new_master()

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
        return any(task.step() for task in turns if task.wakes_at <= now and not task.lags())


class SlotHost:
    """Implements `TaskHost`: the surroundings of the tasks of a slot."""

    def __init__(self, attempt: Attempt, slot: Slot) -> None:
        self.clock = attempt.world
        self._attempt, self._world, self._slot = attempt, attempt.world, slot

    def move_to(self, attempt: Attempt, slot: Slot) -> None:
        self._attempt, self._slot = attempt, slot

    def wake(self) -> None:
        for task in self._attempt.tasks.values():
            if task.slot is self._slot:
                task.wake()

    def send(self, channel: ChannelId, message: Message) -> None:
        receiver = self._attempt.tasks[self._attempt.graph.target(channel)]
        if not receiver.belongs_to(self._attempt):
            return
        reader = self._attempt.readers.get(self._attempt.graph.source(channel))
        self._attempt.channels[channel].check(message, None if reader is None else reader.polled)
        receiver.deliver(channel, message)

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

    def run_in_background(self, subtask: SubtaskId, work: Callable[[], SnapshotAnswer]) -> None:
        self._world.schedule(lambda: self._store(subtask, work), "slow_snapshot")

    def compact(self, work: Callable[[], None]) -> None:
        """Compacts state files later, perhaps after further captures. After a failure, a later snapshot compacts."""
        self._world.schedule(lambda: self._compact(work), "slow_compaction")

    def _store(self, subtask: SubtaskId, work: Callable[[], SnapshotAnswer]) -> None:
        """The asynchronous part of a snapshot. A failure only declines this checkpoint."""
        lost = self._world.faults.occurs("lose_snapshot")
        if not self._slot.alive or (lost and self._world.rng.random() < 0.5):
            return
        report = work()
        if isinstance(report, Decline) and CorruptState.__name__ in report.detail:
            is_subsumed = report.checkpoint < max(self._world.ledger.recorded, default=0)  # its files may be gone
            if not is_subsumed:
                self._check_damage(f"{subtask}: {report.detail}")
        self._world.note(f"{self._attempt.token}:{subtask}", f"{type(report).__name__} of {report.checkpoint}")
        if not lost:
            self.report(subtask, report)

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
        is_overtaken = bool(attempt.settings.alignment_timeout_ms) and task.machine.spec.overtakes
        self._is_slow = is_overtaken and self._world.rng.random() < SLOW
        task.machine.event_log = Journal(attempt.world, f"{attempt.token}:{task.id}")
        task.poll_policy.batch_size.rows = MAX_BATCH_ROWS  # else a short run would end within the slow start

    def lags(self) -> bool:
        """Whether a slow task does not get this turn, so that rows wait before it."""
        return self._is_slow and self._world.rng.random() < LAG

    def belongs_to(self, attempt: Attempt) -> bool:
        """Whether senders of `attempt` reach the task: the token fences those of older attempts."""
        return self._attempt is attempt

    def restart_inputs(self, channels: Collection[ChannelId]) -> list[ProcessedRows]:
        """The senders of `channels` restart. Returns the rows that the task has processed."""
        processed = self.task.processed_rows(channels)
        queues = {channel: self._attempt.channels[channel] for channel in channels}
        self._inputs |= queues
        self._run(lambda: self.task.restart_inputs(channels, lambda channel, is_feedback: queues[channel]))
        return processed

    def move_to(self, attempt: Attempt, slot: Slot) -> None:
        """The task's slot is kept: it continues in another attempt."""
        self._attempt, self.slot = attempt, slot
        self.task.continue_in(attempt.token)
        self.wake()

    def report_to_new_master(self) -> None:
        if self.task.machine.is_logic_done:
            self.slot.send_report(self.subtask, LogicFinished())
        if self.is_started:  # else it reports its start later
            self.slot.send_report(self.subtask, ReportStarted())

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
        passes = bool(self._attempt.settings.alignment_timeout_ms) and self._world.rng.random() < PASSES
        did = passes and bool(self._run(self.task.pass_barriers))
        did = (self.slot.alive and bool(self._run(self.task.step))) or did
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
