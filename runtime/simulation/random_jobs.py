"""Random jobs of the simulator, and the changes that give random parts of a job another property."""

from dataclasses import replace
from random import Random

from runtime.core.job.graph import EdgeSpec, Partitioning
from runtime.core.job.ids import OperatorId
from runtime.simulation.jobs import EVENT_TIME_KINDS, STREAM_JOINS, WINDOW_KINDS, Job, Step
from runtime.simulation.model import WINDOW_MS, Split

KEYS = "abcde"
DISORDERS_MS = (3, WINDOW_MS, WINDOW_MS + 5, 2 * WINDOW_MS + 5)  #: below and above half a window
_STRICT_KINDS = frozenset(EVENT_TIME_KINDS) - {*WINDOW_KINDS}  #: have no output for late rows
AFTER_HISTORY_MS = 2_000  #: added to the event times of a live part, far above those of a history
AFTER_PAUSE_MS = 1_000_000  #: first event time after a pause, far above all other event times


def random_job(rng: Random, loops: Random) -> Job:
    """A job of one to three sources, at most one of which pauses, with chains, unions, joins, loops and sinks.

    Loops are drawn only from the random stream `loops`, so that jobs without a loop do not depend on this stream.
    """
    job = Job()
    lanes = rng.randint(1, 3)
    pausing = rng.randrange(2 * lanes)
    streams = [_source(job, rng, lane, pauses=lane == pausing) for lane in range(lanes)]
    while len(streams) > 1 and rng.random() < 0.75:
        left, right = streams.pop(0), streams.pop(0)
        streams.append(_merge(job, rng, left, right))
    if len(streams) > 1 and loops.random() < 0.5:
        streams = [_crossing(job, loops, streams.pop(0), streams.pop(0)), *streams]
    elif loops.random() < 0.35:
        streams = [_loop(job, loops, streams.pop(0)), *streams]
    for stream in streams:
        for _ in range(1 + (rng.random() < 0.35)):
            _add_sink(job, rng, stream)
    return job


def apart_job(rng: Random) -> Job:
    """A job with chains whose subtasks exchange nothing, and perhaps a branch whose subtasks do."""
    job = Job()
    for lane in range(rng.randint(1, 2)):
        stream = _source(job, rng, lane, pauses=False)
        if rng.random() < 0.4:
            stream = job.add("holding", lane, [(stream, Partitioning.FORWARD)])
        job.add("sink", lane, [(stream, Partitioning.FORWARD)])
    if rng.random() < 0.3:
        _add_sink(job, rng, _source(job, rng, len(job.steps), pauses=False))
    return job


def numbered_job(rng: Random) -> Job:
    """A job with branches behind shuffles whose subtasks keep their state after most failures.

    Some branches have a step that does not pass row numbers on.
    """
    job = Job()
    for _ in range(rng.randint(1, 2)):
        lane = len(job.steps)
        splits = [_split(rng, f"source{lane}.{number}") for number in range(rng.randint(1, 4))]
        stream = job.add_source(lane, rng.random() < 0.2, splits)
        for _ in range(rng.choice((0, 1, 2))):
            kind = "batching" if rng.random() < 0.15 else "map"
            stream = job.add(kind, lane, [(stream, Partitioning.FORWARD)])
        for _ in range(rng.choice((1, 1, 2))):
            last = job.add("count", len(job.steps), [(stream, Partitioning.HASH)])
            if rng.random() < 0.3:
                last = job.add("holding", job.step(last).lane, [(last, Partitioning.FORWARD)])
            job.add("sink", job.step(last).lane, [(last, Partitioning.FORWARD)])
    return job


def _source(job: Job, rng: Random, lane: int, pauses: bool) -> OperatorId:
    bounded = rng.random() < 0.6
    uid = OperatorId(f"source{len(job.steps)}")
    splits = [_split(rng, f"{uid}.{number}") for number in range(rng.randint(1, 4))]
    if pauses:
        splits[0] = _pausing_split(rng, splits[0])
    job.add_source(lane, bounded, splits)
    # No batching step follows a pausing source: rows that it flushes while the source is idle would be late.
    kinds = ("map",) if pauses else ("map", "batching")
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        uid = job.add(rng.choice(kinds), lane, [(uid, Partitioning.FORWARD)])
    return uid


def _pausing_split(rng: Random, split: Split) -> Split:
    """The split with more rows after a pause, whose event times are above all others of the job."""
    later = tuple((key, AFTER_PAUSE_MS + time) for key, time in split.rows or ((KEYS[0], 0),))
    return Split(split.name, split.rows + later, len(split.rows), rng.choice((300, 1_500, 4_000)))


def _split(rng: Random, name: str) -> Split:
    time, rows = 0, []
    for _ in range(rng.choice((0, 3, 12, 25, 40))):
        time += rng.choice((0, 1, 1, 3, 8))
        rows.append((rng.choice(KEYS), time))
    return Split(name, tuple(rows))


def _merge(job: Job, rng: Random, left: OperatorId, right: OperatorId) -> OperatorId:
    lane = len(job.steps)
    if rng.random() < 0.5:
        if is_bounded(job, right):
            return job.add("join", lane, [(left, Partitioning.REBALANCE), (right, Partitioning.BROADCAST)], build=1)
        if is_bounded(job, left):
            return job.add("join", lane, [(right, Partitioning.REBALANCE), (left, Partitioning.BROADCAST)], build=1)
    return job.add("union", lane, [(left, Partitioning.REBALANCE), (right, Partitioning.HASH)])


def _loop(job: Job, rng: Random, stream: OperatorId, mark: str = "~") -> OperatorId:
    """Adds a loop that each row of `stream` passes a few times; some loops contain an inner loop."""
    lane = len(job.steps)
    head = job.add("loop", lane, [(stream, rng.choice((Partitioning.REBALANCE, Partitioning.HASH)))])
    inside = _loop(job, rng, head, "^") if mark == "~" and rng.random() < 0.2 else head
    again, out = _body(job, rng, inside, mark)
    job.close(again, head, rng.choice((Partitioning.REBALANCE, Partitioning.HASH)))
    return out


def _crossing(job: Job, rng: Random, left: OperatorId, right: OperatorId) -> OperatorId:
    """Adds two loops whose back-edges lead to each other's head."""
    heads = [job.add("loop", len(job.steps), [(stream, Partitioning.REBALANCE)]) for stream in (left, right)]
    (again, out), (again_too, out_too) = (_body(job, rng, head, "~") for head in heads)
    job.close(again, heads[1], Partitioning.REBALANCE)
    job.close(again_too, heads[0], Partitioning.HASH)
    return job.add("union", len(job.steps), [(out, Partitioning.REBALANCE), (out_too, Partitioning.REBALANCE)])


def _body(job: Job, rng: Random, head: OperatorId, mark: str) -> tuple[OperatorId, OperatorId]:
    """Adds the body of a loop. Returns the step with the rows for the back-edge and the step with the output."""
    lane = len(job.steps)
    here = job.add("hop", lane, [(head, Partitioning.HASH)], mark=mark)
    if rng.random() < 0.4:
        # Rows that are flushed before a barrier while the channel is idle would be late: see `_source`.
        kinds = ("holding",) if may_idle(job, head) else ("batching", "holding")
        here = job.add(rng.choice(kinds), lane, [(here, Partitioning.FORWARD)])
    again = job.add("again", lane, [(here, Partitioning.FORWARD)], mark=mark)
    return again, job.add("out", lane, [(here, Partitioning.FORWARD)], mark=mark)


def has_loop(job: Job, uid: OperatorId) -> bool:
    """Whether `uid` is or follows a loop. Records from a loop may be late: the watermark does not wait for them."""
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    return job.step(uid).kind == "loop" or any(has_loop(job, source) for source in before)


def may_idle(job: Job, uid: OperatorId) -> bool:
    """Whether a source upstream of `uid` may be idle: it pauses, or it is unbounded and may have no rows."""
    step = job.step(uid)
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    may_lack_rows = step.kind == "source" and not step.bounded
    return _pauses(step) or may_lack_rows or any(may_idle(job, source) for source in before)


def is_bounded(job: Job, uid: OperatorId) -> bool:
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    return all(is_bounded(job, source) for source in before) if before else job.step(uid).bounded


def _add_sink(job: Job, rng: Random, stream: OperatorId) -> None:
    kind = "count" if has_loop(job, stream) else rng.choice(("count", "count", "window"))
    if kind == "count" and rng.random() < 0.4:
        stream = job.add("holding", len(job.steps), [(stream, Partitioning.REBALANCE)])
    last = job.add(kind, len(job.steps), [(stream, Partitioning.HASH)])
    if rng.random() < 0.5:
        job.add("sink", job.step(last).lane, [(last, Partitioning.FORWARD)])
    else:
        job.add("sink", len(job.steps), [(last, Partitioning.REBALANCE)])


def with_pairs(job: Job, rng: Random) -> Job:
    """Makes random unions, except of loops, a join of their inputs in event time.

    A window join is open during a pause of its input, and fires after it. If another stream advances event time in
    between, its rows are late at the next step in event time (as in Flink), so that such a join is no window join.
    """
    chosen = {
        step.uid for step in job.steps if step.kind == "union" and not has_loop(job, step.uid) and rng.random() < 0.6
    }
    steps = [replace(step, kind=rng.choice(STREAM_JOINS)) if step.uid in chosen else step for step in job.steps]
    edges = [
        replace(edge, partitioning=Partitioning.HASH, keys=("key",)) if edge.target in chosen else edge
        for edge in job.edges
    ]
    made = Job(steps, edges)
    return Job([replace(step, kind="pairs") if _fires_late(made, step) else step for step in steps], edges)


def _fires_late(job: Job, step: Step) -> bool:
    """Whether `step` is a window join whose rows may be late after a pause."""
    fed = _fed_by(job, step.uid)
    meets_stream = any(sum(edge.target == uid and not edge.feedback for edge in job.edges) > 1 for uid in fed)
    feeds_event_time = any(job.step(uid).kind in EVENT_TIME_KINDS for uid in fed)
    return step.kind == "window_pairs" and meets_stream and feeds_event_time and _may_pause(job, step.uid)


def _may_pause(job: Job, uid: OperatorId) -> bool:
    """Whether a source upstream of `uid` pauses."""
    before = [edge.source for edge in job.edges if edge.target == uid and not edge.feedback]
    return _pauses(job.step(uid)) or any(_may_pause(job, source) for source in before)


def with_sessions(job: Job, rng: Random) -> Job:
    """Makes random windows session windows, or removals of duplicates within windows."""
    kinds = ("window", "session", "distinct")
    steps = [replace(step, kind=rng.choice(kinds)) if step.kind == "window" else step for step in job.steps]
    return Job(steps, job.edges)


def with_pooling(job: Job, rng: Random) -> Job:
    """Makes random steps hold rows in a union list, except where the held rows would be late for a later step."""
    steps = [
        replace(step, kind="pooling") if _may_pool(job, step) and rng.random() < 0.4 else step for step in job.steps
    ]
    pooling = {step.uid for step in steps if step.kind == "pooling"}
    return Job(steps, [_with_custom_partitioning(edge) if edge.target in pooling else edge for edge in job.edges])


def with_holding(job: Job, rng: Random) -> Job:
    """Makes random steps hold rows and their watermarks, like asynchronous look-ups, also before event time."""
    steps = [replace(step, kind="holding") if step.kind == "map" and rng.random() < 0.3 else step for step in job.steps]
    return Job(steps, job.edges)


def with_requests(job: Job, rng: Random) -> Job:
    """Makes random steps that hold rows wait for the answers of requests."""
    steps = [
        replace(step, kind="asking") if step.kind == "holding" and rng.random() < 0.5 else step for step in job.steps
    ]
    return Job(steps, job.edges)


def with_tees(job: Job, rng: Random) -> Job:
    """Makes random map steps commit the rows that they forward; often several consecutive steps."""
    share = rng.choice((0.0, 0.3, 0.9))
    steps = [replace(step, kind="tee") if step.kind == "map" and rng.random() < share else step for step in job.steps]
    return Job(steps, job.edges)


def _with_custom_partitioning(edge: EdgeSpec) -> EdgeSpec:
    """The edge with custom partitioning instead of rebalance: any subtask of a pooling step may get a row."""
    if edge.partitioning is not Partitioning.REBALANCE:
        return edge
    return replace(edge, partitioning=Partitioning.CUSTOM, keys=("key",))


def _may_pool(job: Job, step: Step) -> bool:
    feeds_event_time = any(job.step(uid).kind in EVENT_TIME_KINDS for uid in _fed_by(job, step.uid))
    return step.kind == "holding" or (step.kind == "map" and not feeds_event_time)


def _fed_by(job: Job, uid: OperatorId) -> set[OperatorId]:
    """All steps that the rows of `uid` reach."""
    behind = {edge.target for edge in job.edges if edge.source == uid and not edge.feedback}
    return behind.union(*(_fed_by(job, target) for target in behind))


def with_drifts(job: Job, rng: Random) -> Job:
    """Aligns random sources with all others, also where their rows do not wait for windows."""
    steps = [
        replace(step, max_drift_ms=rng.choice((1, WINDOW_MS))) if step.kind == "source" and rng.random() < 0.3 else step
        for step in job.steps
    ]
    return Job(steps, job.edges)


def with_disorder(job: Job, rng: Random) -> Job:
    """Makes rows of random sources arrive out of order. Some also have stragglers, where only windows follow."""
    for uid in [step.uid for step in job.sources if rng.random() < 0.4]:
        may_be_late = all(job.step(fed).kind not in _STRICT_KINDS for fed in _fed_by(job, uid))
        job = with_disordered_source(job, uid, rng, stragglers=rng.random() < 0.5 and may_be_late)
    return job


def with_disordered_source(job: Job, uid: OperatorId, rng: Random, stragglers: bool) -> Job:
    """Makes the rows of a source arrive out of order; `stragglers`: some by more than the disorder.

    Windows that stragglers reach emit late rows. A pausing split stays in order: it is idle during its pause.
    """
    disorder_ms = rng.choice(DISORDERS_MS)
    splits = tuple(
        split if split.pauses_at is not None else _disordered(split, disorder_ms, rng, stragglers)
        for split in job.step(uid).splits
    )
    reached = _fed_by(job, uid) if stragglers else set[OperatorId]()
    late_windows = {step.uid for step in job.steps if step.kind == "window" and step.uid in reached}
    steps = [
        replace(
            step,
            splits=splits if step.uid == uid else step.splits,
            kind="straggler_window" if step.uid in late_windows else step.kind,
        )
        for step in job.steps
    ]
    return Job(steps, job.edges)


def _disordered(split: Split, disorder_ms: int, rng: Random, stragglers: bool) -> Split:
    """The rows delayed by up to `disorder_ms` each. A straggler follows a random row, up to three windows too late."""
    rows = sorted(split.rows, key=lambda row: row[1] + rng.randint(0, disorder_ms))
    for place in sorted(rng.sample(range(len(rows)), len(rows) // 6), reverse=True) if stragglers else ():
        newest = max(time for _, time in rows[: place + 1])
        time = max(0, newest - disorder_ms - rng.randint(1, 3 * WINDOW_MS))
        rows.insert(place + 1, (rng.choice(KEYS).upper(), time))
    return replace(split, rows=tuple(rows), disorder_ms=disorder_ms)


def with_list_state(job: Job, rng: Random) -> Job:
    """Makes some sources keep their splits in list state; some of these splits have much later event times."""
    chosen = {step.uid for step in job.sources if rng.random() < 0.3}
    return Job([_use_list_state(step, rng) if step.uid in chosen else step for step in job.steps], job.edges)


def _use_list_state(step: Step, rng: Random) -> Step:
    return replace(
        step, uses_list_state=True, splits=tuple(_shift_times(split, rng.choice((0, 500))) for split in step.splits)
    )


def _shift_times(split: Split, by_ms: int) -> Split:
    if split.pauses_at is not None:
        return split
    return replace(split, rows=tuple((key, time + by_ms) for key, time in split.rows))


def with_histories(job: Job, rng: Random) -> Job:
    """Makes sources of some jobs read some of their splits as a history, and then the others, whose rows are later.

    An unbounded source is left out if a batching step follows: a subtask without live splits is idle, and the rows of
    the history that the step flushes while the channel is idle would be late.
    """
    return Job([_with_history(job, step, rng) for step in job.steps], job.edges) if rng.random() < 0.25 else job


def _with_history(job: Job, step: Step, rng: Random) -> Step:
    batches = any(job.step(uid).kind == "batching" for uid in _fed_by(job, step.uid))
    fits = step.kind == "source" and not _pauses(step) and len(step.splits) > 1 and (step.bounded or not batches)
    if not fits or rng.random() < 0.5:
        return step
    count = rng.randrange(1, len(step.splits))
    live = (_shift_times(split, AFTER_HISTORY_MS) for split in step.splits[count:])
    return replace(step, history=count, splits=(*step.splits[:count], *live))


def with_bursts(job: Job, rng: Random) -> Job:
    """Makes all splits of some pausing sources pause: their rows after the pause exist from the same moment on."""
    chosen = {step.uid for step in job.sources if _pauses(step) and rng.random() < 0.7}
    return Job([_with_burst(step, rng) if step.uid in chosen else step for step in job.steps], job.edges)


def _with_burst(step: Step, rng: Random) -> Step:
    first = next(split for split in step.splits if split.pauses_at is not None)
    splits = [split if split is first else _burst(split, first.resumes_ms, rng) for split in step.splits]
    new = [Split(f"{step.uid}.new{n}", (), 0, first.resumes_ms) for n in range(rng.randint(0, 2))]
    return replace(step, splits=(*splits, *(_burst(split, first.resumes_ms, rng) for split in new)))


def _burst(split: Split, resumes_ms: int, rng: Random) -> Split:
    times = sorted(rng.randint(0, 6 * WINDOW_MS) for _ in range(rng.choice((1, 5, 20))))
    later = tuple((rng.choice(KEYS), AFTER_PAUSE_MS + time) for time in times)
    return Split(split.name, split.rows + later, len(split.rows), resumes_ms)


def _pauses(step: Step) -> bool:
    return any(split.pauses_at is not None for split in step.splits)


def random_parallelism(rng: Random, job: Job) -> dict[int, int]:
    """A parallelism from 1 to 3 for every lane."""
    return {lane: rng.randint(1, 3) for lane in sorted({step.lane for step in job.steps})}
