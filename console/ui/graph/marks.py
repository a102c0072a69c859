"""Marks of operators in the job graph: a shape and a word for each operator that a finding of health names.

The rules of `console.health` decide; this module only words their findings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from console.health.findings import Finding, Level
from console.health.rules.flow import FALLS_BEHIND, SATURATED, SKEW
from console.ui.status import Meaning

#: Words by rule, for the operator that a finding of the rule blames.
_WORDS: Final[Mapping[str, str]] = {
    "run-failed": "failed",
    "outage": "waits for storage",
    "memory": "out of memory",
    "restart-loop": "fails",
    "restarting": "failed",
    "checkpoints-fail": "slow",
    "storage-slow": "slow storage",
    "checkpoints-slow": "slow",
    SKEW: "skewed",
    "backpressure": "slow",
    FALLS_BEHIND: "slow",
    SATURATED: "slow",
    "watermark": "holds event time",
    "input-silent": "sends no records",
    "slow-end": "delivers epochs",
    "sink-backlog": "stage not running",
    "standing-stage": "stage not running",
    "rows-set-aside": "rows set aside",
    "state-growth": "state grows",
    "state-unmerged": "state not merged",
}


@dataclass(frozen=True, slots=True)
class OperatorMark:
    """`shape` names a symbol of `console.ui.status`."""

    word: str
    shape: str
    meaning: Meaning


def marks(
    findings: Iterable[Finding], names: Mapping[str, str], skew: Mapping[str, float] = MappingProxyType({})
) -> dict[str, OperatorMark]:
    """The mark of each operator that `findings` name, by uid. `names`: of all operators, by uid. A skewed operator has
    its `skew`.

    Of several findings on an operator, the first counts: they are the most severe first. An operator that is blamed
    itself is not marked as waiting.
    """
    causes: dict[str, OperatorMark] = {}
    waiting: dict[str, OperatorMark] = {}
    for finding in findings:
        if finding.operator in names and (word := _WORDS.get(finding.rule)):
            is_failed = finding.level is Level.FAILED
            if finding.rule == SKEW and finding.operator in skew:
                word = f"{word} {skew[finding.operator]:.1f}×"
            mark = OperatorMark(word, *(("square", Meaning.FAILED) if is_failed else ("triangle", Meaning.ATTENTION)))
            causes.setdefault(finding.operator, mark)
        for uid in finding.waiting:
            waiting.setdefault(uid, OperatorMark(f"waits for {names.get(finding.operator)}", "pause", Meaning.BUSY))
    return {uid: mark for uid, mark in (waiting | causes).items() if uid in names}
