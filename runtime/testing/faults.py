"""What may go wrong in a simulated world, by name. Each seed draws its own mixture, so that faults also occur alone."""

from dataclasses import dataclass, field
from random import Random
from typing import Final

#: Chance of each fault at each opportunity (a step of the world, a write, an answer).
RATES: Final = {
    "crash_slot": 0.0005,
    "fail_operator": 0.0003,
    "crash_master": 0.0003,
    "zombie_master": 0.0003,  #: the old master and its slots go on after the new one has begun
    "clock_jump": 0.001,
    "fail_snapshot": 0.02,
    "lose_snapshot": 0.004,
    "slow_snapshot": 0.05,
    "fail_read": 0.003,
    "fail_delete": 0.05,
    "slow_delete": 0.1,
    "fail_manifest": 0.08,
    "unknown_manifest": 0.15,
    "slow_manifest": 0.15,
    "id_unavailable": 0.05,
    "slow_id": 0.1,
    "fail_commit": 0.03,
    "repeat_message": 0.02,
}

#: Chance of each request at each step of the world.
REQUESTS: Final = {
    "checkpoint": 0.002,
    "savepoint": 0.0015,
    "stop": 0.002,
    "drain": 0.00015,
    "cancel": 0.0004,
}


@dataclass(slots=True)
class Faults:
    """Which faults happen in one world, and until when."""

    rng: Random
    rates: dict[str, float] = field(default_factory=dict)
    active: bool = True
    seen: dict[str, int] = field(default_factory=dict)
    ordered: list[str] = field(default_factory=list)  #: to happen at the next opportunity, for named incidents

    @classmethod
    def drawn(cls, rng: Random) -> "Faults":
        """A random mixture: each kind is absent, normal, or three times as likely."""
        both = RATES | REQUESTS
        return cls(rng, {name: rate * rng.choice((0, 0, 1, 3)) for name, rate in both.items()})

    def strikes(self, name: str) -> bool:
        if name in self.ordered:
            self.ordered.remove(name)
        elif not self.active or self.rng.random() >= self.rates.get(name, 0.0):
            return False
        self.seen[name] = self.seen.get(name, 0) + 1
        return True
