"""Systems under test, a file each. Each file is a program, started with the Python of its environment."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class System:
    """A system.

    Args:
        peer: its virtual environment below var/peers; None: the project's environment.
        is_batch: it computes the answer of a batch: an upper bound for the rate, and not a peer. It drops no late rows,
            and does not go on after a SIGKILL.
    """

    name: str
    title: str
    peer: str | None = None
    is_batch: bool = False

    @property
    def module(self) -> str:
        return f"benchmarks.systems.{self.name}"


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("weir", "Weir"),
        System("spark", "Structured Streaming"),
        System("flink_sql", "Flink SQL", "flink"),
        System("pyflink", "PyFlink", "flink"),
        System("bytewax", "Bytewax", "bytewax"),
        System("pathway", "Pathway", "pathway"),
        System("duckdb", "DuckDB (batch)", is_batch=True),
    )
}


def python_of(system: System, peers: Path, interpreter: str) -> str | None:
    """The interpreter that runs a system; None if its environment is not installed."""
    if system.peer is None:
        return interpreter
    path = peers / system.peer / "bin" / "python"
    return str(path) if path.exists() else None
