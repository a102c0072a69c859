"""Simulates many seeds, or replays a single seed.

    python -m runtime.simulation --seeds 2000
    python -m runtime.simulation --replay 1234

After a violation, the simulator shrinks the world as long as the same invariant fails. The output is the journal of the
smallest world, the seed, the invariant, and the command that replays it.
"""

import argparse
import os
import sys

from tqdm import tqdm

from runtime.clock import SystemClock
from runtime.simulation.cuts import Cuts
from runtime.simulation.seeds import Evidence, first_violation
from runtime.simulation.shrinking import Budget, shrink
from runtime.simulation.simulation import SeedViolation, SimulationPlan, simulate


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    if chosen.replay is not None:
        return _replay(chosen.replay, _cuts(chosen))
    total = Evidence()
    with tqdm(total=chosen.seeds, unit="seed", disable=None, smoothing=0.05) as bar:

        def lived(evidence: Evidence) -> None:
            nonlocal total
            total += evidence
            bar.update(evidence.seeds)

        broken = first_violation(range(chosen.start, chosen.start + chosen.seeds), chosen.processes, lived)
    if broken is not None:
        return _shrink_and_print(broken, chosen.tries, chosen.shrink_s)
    print(f"{chosen.seeds} seeds, 0 violations; {total}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtime.simulation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="number of seeds to simulate")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="processes in parallel")
    parser.add_argument("--tries", type=int, default=400, help="number of smaller worlds to try after a violation")
    parser.add_argument("--shrink-s", type=float, default=90, help="time limit for shrinking in seconds")
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="replay a seed and print its journal; further options reduce it"
    )
    parser.add_argument("--only", type=_names, help="faults and requests to keep, such as crash_slot:1,stop:2, or none")
    parser.add_argument("--rows", type=int, help="maximum number of rows per split")
    parser.add_argument("--skip", type=_names, default=frozenset(), help="steps to leave out")
    parser.add_argument("--parallelism", type=int, help="maximum parallelism of any operator")
    parser.add_argument("--schedule", type=int, default=0, help="number of the interleaving of the same world")
    return parser


def _names(text: str) -> frozenset[str]:
    return frozenset() if text == "none" else frozenset(text.split(","))


def _cuts(chosen: argparse.Namespace) -> Cuts:
    return Cuts(
        only=chosen.only,
        rows=chosen.rows,
        skip=chosen.skip,
        parallelism=chosen.parallelism,
        schedule=chosen.schedule,
    )


# ---------------------------------------------------------------- one seed


def _replay(seed: int, cuts: Cuts) -> int:
    try:
        simulation = simulate(seed, SimulationPlan(cuts=cuts))
    except SeedViolation as broken:
        _print_violation(broken)
        return 1
    print("\n".join(simulation.world.lines()))
    faults = ", ".join(simulation.world.faults.occurred_labels) or "no fault"
    print(f"\nseed {seed}: {simulation.world.steps} steps, runs {', '.join(simulation.endings)}; {faults}")
    return 0


def _shrink_and_print(broken: SeedViolation, tries: int, shrink_s: float) -> int:
    clock = SystemClock()
    deadline = clock.monotonic_ms() + 1000 * shrink_s
    with tqdm(total=tries, desc=f"seed {broken.simulation.seed} violates an invariant; shrinking", disable=None) as bar:

        def progress(best: SeedViolation) -> None:
            bar.set_postfix_str(
                f"journal of {best.journal_lines} lines, originally {broken.journal_lines}", refresh=False
            )
            bar.update()

        best = shrink(broken, Budget(tries, lambda: clock.monotonic_ms() < deadline, progress))
    _print_violation(best)
    if best.journal_lines < broken.journal_lines:
        print(f"its journal has {best.journal_lines} lines, originally {broken.journal_lines}")
    return 1


def _print_violation(broken: SeedViolation) -> None:
    seed, cuts = broken.simulation.seed, broken.simulation.cuts
    print("\n".join(broken.simulation.world.lines()))
    print(f"\nseed {seed}: {broken.invariant}\n{broken.detail}")
    print(f"replay: python -m runtime.simulation --replay {seed} {cuts.options()}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
