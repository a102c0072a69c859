"""The table of rules, and the verdict on a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median
from typing import Any, Final

from console import formats
from console.health.ages import read_ages
from console.health.facts import RunFacts
from console.health.findings import Finding, Level, Rule, Verdict
from console.health.rules import attempts, changes, checkpoints, code, flow, schedules, workers
from runtime.core.job.lifecycle import FLOWING_STATES, TERMINAL_STATES, RunState

_S = RunState
_ACTIVE: Final = frozenset(RunState) - TERMINAL_STATES
_EXECUTING: Final = _ACTIVE - {_S.QUEUED}
_CHECKPOINTING: Final = frozenset({_S.RUNNING, _S.RESTARTING})
_NAME_THE_ROOT: Final = frozenset({checkpoints.SLOW, flow.FALLS_BEHIND})

_RESCALE: Final = "rescale"
_CHEAPER: Final = "Raise the parallelism of the job, or make the code of {operator} cheaper."

#: All rules. Findings of the same level have the order of this table: causes before their effects.
RULES: Final = (
    Rule("run-failed", {_S.FAILED}, attempts.run_failed, "The page of the job has the whole reason and the next step."),
    Rule(
        "outage", _EXECUTING, attempts.outage,
        "Check the storage or service that the message names; the run continues by itself.",
    ),
    Rule(
        "low-disk", _ACTIVE, workers.low_disk,
        "Free space there: on a full disk checkpoints fail, and Postgres ends until there is space again.",
    ),
    Rule(
        "memory", _EXECUTING, attempts.memory,
        "Raise slot_memory_mb or the parallelism, or bound the state of the operators.",
    ),
    Rule(
        "restart-loop", _EXECUTING, attempts.restart_loop,
        "See the attempts of the run for the whole reason; correct the code or the data that it names.",
    ),
    Rule("restarting", {_S.RESTARTING}, attempts.restarting, "See the attempts of the run for the whole reason."),
    Rule(
        "lost-lease", _ACTIVE, workers.lost_lease, "Check the host of the Celery worker and the queue runs."
    ),
    Rule("no-worker", {_S.QUEUED}, workers.no_worker, "Start a Celery worker of the queue runs, or end another job."),
    Rule("no-slots", {_S.WAITING}, workers.no_slots, "Add executors, or end another job."),
    Rule("silent-master", FLOWING_STATES, workers.silent_master, "Check the host of the Celery worker, and Postgres."),
    Rule(
        "slow-change", {_S.STARTING, _S.STOPPING, _S.DRAINING, _S.CANCELLING}, changes.slow_change,
        "See the log of the job master; a cancel ends a run that starts, stops or drains.",
    ),
    Rule(
        "slow-end", FLOWING_STATES | {_S.STARTING}, workers.slow_end,
        "Check the PySpark stage of {operator} and its target; the run ends once the epochs are delivered.",
    ),
    Rule("old-numbers", FLOWING_STATES, workers.old_numbers, "See the log of the job master, and Postgres."),
    Rule(
        "silent-slot", FLOWING_STATES, workers.silent_slot,
        "Check the host of the slot, and its log on the page of the job.",
    ),
    Rule(
        "checkpoints-fail", _CHECKPOINTING, checkpoints.failing,
        "Open the failed checkpoint; output stays uncommitted until a checkpoint completes.",
    ),
    Rule(
        checkpoints.STORAGE, _CHECKPOINTING, checkpoints.storage_slow,
        "Check the latency and the load of the checkpoint storage.",
    ),
    Rule(
        flow.FALLS_BEHIND, FLOWING_STATES, flow.falls_behind,
        _CHEAPER, is_sampled=True, act=_RESCALE,
    ),
    Rule(
        flow.SATURATED, FLOWING_STATES, flow.saturated,
        _CHEAPER, is_sampled=True, act=_RESCALE,
    ),
    Rule(
        checkpoints.SLOW, _CHECKPOINTING, checkpoints.slow,
        "Relieve {operator}, or take checkpoints less often.", act=_RESCALE,
    ),
    Rule(
        flow.SKEW, FLOWING_STATES, flow.skew,
        "Look for a hot key in the input of {operator}; aggregate before the shuffle, or add a salt to the key.",
        is_sampled=True,
    ),
    Rule(
        flow.BACKPRESSURE, FLOWING_STATES, flow.backpressure,
        _CHEAPER, is_sampled=True, act=_RESCALE,
    ),
    Rule(
        "rows-set-aside", FLOWING_STATES, flow.rows_set_aside,
        "Open the dead letters of the job, correct the code of {operator} or its input, and replay them with a new "
        "version.",
    ),
    Rule("checkpoints-overdue", {_S.RUNNING}, checkpoints.overdue, "See the log of the job master."),
    Rule(
        "watermark", FLOWING_STATES, flow.watermark_stands,
        "Give {operator} an idle timeout, or find out why it has no records.", is_sampled=True,
    ),
    Rule(
        flow.SILENT, flow.SILENCE_STATES, flow.input_silent,
        "Check whether the system before {operator} still writes to the place that it reads.", is_sampled=True,
    ),
    Rule("sink-backlog", FLOWING_STATES, workers.sink_backlog, "Check the PySpark stage of the sink and its target."),
    Rule("standing-stage", _ACTIVE, workers.standing_stages, "See the log of the stage, and the queue standing."),
    Rule(
        "state-growth", FLOWING_STATES, flow.state_growth,
        "Give the state of {operator} a time to live, or check its timers.",
    ),
    Rule(
        "state-unmerged", _ACTIVE, checkpoints.unmerged,
        "See the log of the slot: it names the file and the key group. Verify the newest checkpoint.",
    ),
    Rule("unreadable", _ACTIVE, checkpoints.unreadable, "Open the checkpoint in the list of the job."),
    Rule(
        "savepoint-failed", _ACTIVE, checkpoints.savepoint_failed,
        "Open the failed savepoint, and take another one once its cause is gone.",
    ),
    Rule(
        "schedule-missed", _ACTIVE, schedules.missed_time,
        "Remove the cause, or change the schedule; its next time ends this finding if it is not missed.",
    ),
    Rule(
        "drill-failed", _ACTIVE, schedules.drill_failed,
        "See the operation of the drill, and take another one once the cause is gone.",
    ),
    Rule(
        "other-code", _EXECUTING, code.other_code,
        "Make a new version of the job, which has the graph of the installed code, and restore it.",
    ),
)  # fmt: skip


def assess(facts: RunFacts, found_since: Mapping[str, datetime] | None = None) -> Verdict:
    """The verdict on a run. `found_since`: since when the former verdict has had each of its rules.

    A run in BATCH takes no checkpoints and has no live flow, so the facts of these are empty.
    """
    times = found_since or {}
    findings = sorted(_findings(facts, times), key=lambda finding: -finding.level)  # stable: the order of the table
    if attempts.RESTART_CAUSES & {finding.rule for finding in findings}:
        findings = [finding for finding in findings if finding.rule != "restarting"]
    findings = _of_hot_keys(findings)
    common: Mapping[str, Any] = {
        "state": facts.state, "checked_at": facts.now, "silent_inputs": flow.silent_inputs(facts),
    }  # fmt: skip
    if findings:
        first = findings[0]
        marked = _with_repetitions(findings)
        return Verdict(level=first.level, sentence=first.sentence, since=first.since, findings=marked, **common)
    if facts.state in TERMINAL_STATES:
        return Verdict(level=Level.NONE, since=facts.ended_at, **common)
    return Verdict(level=Level.OK, sentence=_good_sentence(facts), since=facts.started_at, **common)


def _of_hot_keys(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; those on a skewed operator have the remedy of skew: more subtasks relieve no hot key."""
    skewed = {finding.operator: finding for finding in findings if finding.rule == flow.SKEW}
    return [
        replace(finding, act="", remedy=skew.remedy)
        if finding.act == _RESCALE and (skew := skewed.get(finding.operator))
        else finding
        for finding in findings
    ]


def _with_repetitions(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings; backpressure by an operator that another finding names already is marked as a repetition."""
    named = {finding.operator for finding in findings if finding.rule in _NAME_THE_ROOT}
    return tuple(
        replace(finding, repeats=finding.rule == flow.BACKPRESSURE and finding.operator in named)
        for finding in findings
    )


def _findings(facts: RunFacts, times: Mapping[str, datetime]) -> list[Finding]:
    return [
        _filled(finding, rule, facts, times)
        for rule in RULES
        if facts.state in rule.states
        for finding in rule.find(facts)
    ]


def _filled(finding: Finding, rule: Rule, facts: RunFacts, times: Mapping[str, datetime]) -> Finding:
    """The finding with the facts that its rule gives it."""
    sentence, ages = read_ages(finding.sentence)
    return replace(
        finding,
        sentence=sentence,
        ages=ages,
        rule=rule.name,
        act=rule.act if finding.act is None else finding.act,
        remedy=finding.remedy or rule.remedy.format(operator=facts.operator(finding.operator)),
        since=finding.since or times.get(rule.name) or facts.now,
        as_of=facts.old_since if rule.is_sampled else None,
    )


def _good_sentence(facts: RunFacts) -> str:
    """A sentence on a run without findings: it catches up, or how its checkpoints do."""
    if facts.state not in _CHECKPOINTING or facts.is_batch:
        return ""
    checkpoints = facts.checkpoints
    took = f"{formats.duration(median(checkpoints.recent_ms))}" if checkpoints.recent_ms else ""
    text = f"Checkpoints take {took} and begin every {formats.duration(checkpoints.interval_ms)}." if took else ""
    speed = flow.catch_up_speed(facts)
    if speed is not None and speed >= flow.CATCH_UP and flow.bottleneck(facts):
        return f"Catching up: event time advances {speed:.0f} times as fast as the clock. {text}".rstrip()
    return text if checkpoints.interval_ms else ""
