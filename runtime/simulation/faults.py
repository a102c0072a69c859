"""The faults of a simulated world. Each seed draws its own mixture, so that faults also occur in isolation."""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from random import Random
from typing import Final

#: Probability of each fault at each opportunity (a step of the world, a write, an answer).
FAULT_RATES: Final = {
    "crash_slot": 0.0005,
    "fail_operator": 0.0003,
    "crash_master": 0.0003,
    "zombie_master": 0.0003,  #: the old master and its slots continue after the new master has started
    "clock_jump": 0.001,
    "skewed_clock": 0.2,  #: the clock of a new attempt's master is wrong
    "fail_snapshot": 0.02,
    "lose_snapshot": 0.004,
    "slow_snapshot": 0.05,
    "fail_read": 0.01,
    "fail_delete": 0.05,
    "fail_manifest": 0.08,
    "unknown_manifest": 0.15,
    "slow_manifest": 0.15,
    "id_unavailable": 0.05,
    "slow_id": 0.1,
    "fail_commit": 0.03,
    "repeat_message": 0.02,
    "slow_message": 0.01,
    "lose_message": 0.0003,  #: between a slot and the master: the connection is lost
    "partition": 0.0005,  #: between two slots: nothing arrives for a while, or the connection breaks in the end
    "foreign_slot": 0.1,  #: a slot of an older attempt, or a second slot of this number, connects to the master
    "torn_write": 0.005,  #: storage keeps the first half of a file and reports an error
    "lose_store_reply": 0.01,  #: storage writes or deletes, and its answer is lost
    "repeat_write": 0.05,  #: a write arrives once more, behind the next writes or deletions
    "stale_listing": 0.3,  #: a listing lacks new files and has deleted files
    "lose_metadata_reply": 0.03,  #: the database does what it is told, and its answer is lost
}

#: Probability of each external event at each step of the world. Drawn last: other rates stay unchanged.
EXTERNAL_EVENT_RATES: Final = {
    "take_output": 0.002,  #: a consumer moves all committed output away
    "storage_outage": 0.0005,  #: reads, writes and deletions fail for a while
    "stop_master": 0.0005,  #: the process is stopped (SIGSTOP) and later continues; its slots keep running
    "damage_manifest": 0.002,  #: a retained checkpoint other than the newest becomes unreadable
    "slow_compaction": 0.3,  #: further captures come before the files of a state are merged
    "slow_storage": 0.0005,  #: for seconds, each write takes seconds
}

#: Probability of each user request at each step of the world.
REQUEST_RATES: Final = {
    "checkpoint": 0.002,
    "savepoint": 0.0015,
    "stop": 0.002,
    "drain": 0.00015,
    "cancel": 0.0004,
    "discard_savepoint": 0.002,
    "change_retention": 0.001,
}


@dataclass(slots=True)
class Faults:
    """Decides which faults happen in a world.

    Each kind of fault has its own stream of random numbers, so that leaving out a fault does not move other faults.
    Labels count all drawn faults: the third crash of a slot is `crash_slot:3`, even if earlier crashes are left out.
    """

    seed: str
    rates: dict[str, float] = field(default_factory=dict)
    only: Set[str] | None = None  #: labels of the faults that happen; None: all
    active: bool = True
    occurred_labels: list[str] = field(default_factory=list)  #: labels of the drawn faults that happened
    occurrences: Counter[str] = field(default_factory=Counter)
    scripted_names: list[str] = field(default_factory=list)  #: faults of a scenario, at the next opportunity
    _streams: dict[str, Random] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    @classmethod
    def random_mixture(cls, seed: str, only: Set[str] | None) -> "Faults":
        """A random mixture: each kind is absent, has its normal rate, or three times that rate."""
        rng = Random(f"{seed} mixture")
        return cls(
            seed,
            {
                name: rate * rng.choice((0, 0, 1, 3))
                for name, rate in (FAULT_RATES | REQUEST_RATES | EXTERNAL_EVENT_RATES).items()
            },
            only,
        )

    def can_occur(self, name: str) -> bool:
        """Whether the fault can occur in this world."""
        return name in self.scripted_names or bool(self.rates.get(name))

    def occurs(self, name: str) -> bool:
        if name in self.scripted_names:
            self.scripted_names.remove(name)
        elif not self._draw(name):
            return False
        self.occurrences[name] += 1
        return True

    def _draw(self, name: str) -> bool:
        rate = self.rates.get(name, 0.0)
        if not self.active or not rate or self._stream(name).random() >= rate:
            return False
        self._numbers[name] += 1
        label = f"{name}:{self._numbers[name]}"
        if self.only is not None and label not in self.only:
            return False
        self.occurred_labels.append(label)
        return True

    def _stream(self, name: str) -> Random:
        if name not in self._streams:
            self._streams[name] = Random(f"{self.seed} {name}")
        return self._streams[name]
