"""Where the processor time of a workload goes in Weir: `python -m benchmarks.profile R5 [--share 0.5]`.

The first table has the processor time of all processes. The loops of the slots, where operators run, are sampled from
outside by py-spy, which `make bench-peers` installs. A sample counts for the innermost function of Weir or of the
benchmark on the stack: time in a library, such as Arrow, belongs to its caller. Threads that wait for gRPC look busy to
py-spy, so stacks of other threads are left out. The output is not compared.
"""

import argparse
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import child, database, inputs, protocol, results
from benchmarks.child import BENCH, find_java
from benchmarks.harness import lock_folder
from benchmarks.peers import PEERS
from benchmarks.workload import Workload
from benchmarks.workloads import WORKLOADS

SAMPLER: Final = PEERS / "sampler" / "bin" / "py-spy"
RATE: Final = 40  #: samples of each thread per second
TIME_BOX_S: Final = 300.0
TOP: Final = 25  #: functions in the table
_SAMPLE_INTERVAL_S: Final = 0.1
_OWN: Final = re.compile(r"^(?P<name>.+) \((?P<file>(?:runtime|weir|benchmarks|spark_jobs)/[^:)]+)(?::\d+)?\)$")
LOOPS, SLOTS, MASTER, SAMPLING = (
    "loops of the slots",
    "other threads of the slots",
    "job master",
    "sampler",
)  #: kinds of processes
_LOOP: Final = "_loop (runtime/slot/slot.py"
_IMPORTS: Final = "imports of modules"
_OTHER: Final = "other Python"


# ---------------------------------------------------------------- stacks


@dataclass(frozen=True)
class Profile:
    """Numbers of samples."""

    by_part: Counter[str] = field(default_factory=Counter)
    by_function: Counter[str] = field(default_factory=Counter)

    @property
    def samples(self) -> int:
        return self.by_part.total()


def profile_of(stacks: Iterable[str]) -> Profile:
    """The samples of slots' loops in `stacks`: lines of frames, outermost first, and a number of samples."""
    profile = Profile()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if _LOOP not in stack:
            continue
        frames = stack.split(";")
        frame_match = next((match for frame in reversed(frames) if (match := _OWN.match(frame))), None)
        if any("_find_and_load" in frame for frame in frames):
            part, function = _IMPORTS, None
        elif frame_match is None:
            part, function = _OTHER, None
        else:
            part, function = _part(frame_match["file"]), f"{frame_match['name']} ({frame_match['file']})"
        profile.by_part[part] += int(count)
        if function is not None:
            profile.by_function[function] += int(count)
    return profile


def _part(file: str) -> str:
    """The package of a module, at most three folders deep: runtime/operators/windows."""
    if file.startswith("benchmarks/"):
        return "functions of the workload"
    return "/".join(file.split("/")[:-1][:3])


# ---------------------------------------------------------------- processes


@dataclass
class ProcessTimes:
    """Processor seconds of this process's descendants by kind, from `start` on, in a thread of its own.

    The main threads of the slots, which run the loops, are a kind of their own.
    """

    _kinds: dict[psutil.Process, str] = field(default_factory=dict)
    _before: dict[tuple[int, str], float] = field(default_factory=dict)
    _last: dict[tuple[int, str], float] = field(default_factory=dict)  #: by process and kind
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._sample()
        self._before = dict(self._last)
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> dict[str, float]:
        """Seconds by kind, the largest first."""
        self._ended.set()
        totals: dict[str, float] = {}
        for (pid, kind), seconds in dict(self._last).items():
            totals[kind] = totals.get(kind, 0.0) + seconds - self._before.get((pid, kind), 0.0)
        return dict(sorted(totals.items(), key=lambda entry: -entry[1]))

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                kind = self._kinds.get(process) or self._kinds.setdefault(process, kind_of(process.cmdline()))
                times = process.cpu_times()
                seconds = times.user + times.system
                if kind == SLOTS:
                    loop = sum(
                        each.user_time + each.system_time for each in process.threads() if each.id == process.pid
                    )
                    self._last[process.pid, LOOPS], seconds = loop, seconds - loop
                self._last[process.pid, kind] = seconds


def kind_of(command: Sequence[str]) -> str:
    """The role of a process, by its command line."""
    text = " ".join(command)
    for mark, kind in (
        ("py-spy", SAMPLING),
        ("/java ", "JVM of Spark"),  # whose arguments name the daemon of the slots
        ("spark_daemon", SLOTS),
        ("benchmarks.systems", MASTER),
        ("postgres", "Postgres"),
    ):
        if mark in text:
            return kind
    return "others"


# ---------------------------------------------------------------- run


class _Sampler:
    """Samples a child while its measured run lasts."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._times = ProcessTimes()
        self._process: subprocess.Popen[bytes] | None = None
        self.seconds: dict[str, float] = {}

    def on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == protocol.STARTED:
            self._times.start()
            (master,) = (each for each in psutil.Process().children() if kind_of(each.cmdline()) == MASTER)
            command = [str(SAMPLER), "record", "--pid", str(master.pid), "--subprocesses", "--nonblocking"]
            command += ["--rate", str(RATE), "--format", "raw", "--output", str(self._output)]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        elif event["event"] == protocol.MEASURED and self._process is not None:
            self.seconds = self._times.stop()
            self._process.send_signal(signal.SIGINT)
            self._process.wait()


def run(workload: Workload, folder: Path, share: float = 1.0) -> str:
    """Runs the workload once in Weir. Returns the tables."""
    stacks = folder / "stacks.txt"
    sampler = _Sampler(stacks)
    with (
        inputs.input_files(workload, BENCH / "inputs", share) as files,
        database.target_database(workload, folder / "postgres") as url,
    ):
        task = replace(workload.task("weir", str(folder), share, str(files / "weir")), database=url)
        outcome = child.run(
            [sys.executable, "-m", "benchmarks.systems.weir", task.to_json()],
            environment={"PYSPARK_PYTHON": sys.executable, "TZ": "UTC"},
            log=BENCH / "log" / f"profile-{workload.name}.log",
            time_box_s=TIME_BOX_S,
            on_event=sampler.on_event,
        )
    if outcome.state != "done":
        raise SystemExit(f"{workload.name}: {outcome.state}, see {BENCH / 'log' / f'profile-{workload.name}.log'}")
    with stacks.open() as lines:
        return render(task.rows, sampler.seconds, profile_of(lines))


def render(rows: int, seconds: Mapping[str, float], profile: Profile) -> str:
    """Tables of the processes, of the parts of the slots' loops, and of their functions. Times are per row."""
    lines = [_line(kind, "", spent, rows) for kind, spent in seconds.items() if kind != SAMPLING]
    for title, counts in (
        ("parts of the loops", profile.by_part),
        ("functions of the loops", profile.by_function),
    ):
        lines += ["", title]
        for name, count in counts.most_common(TOP):
            share = count / profile.samples
            lines.append(_line(name, f"{share:.1%}", share * seconds.get(LOOPS, 0.0), rows))
    return "\n".join(lines) + f"\n{profile.samples} samples; load average {results.load_average()}\n"


def _line(name: str, share: str, seconds: float, rows: int) -> str:
    return f"{name:70} {share:>7} {seconds / rows * 1e9:>10,.0f} ns"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description="The processor time of a workload in Weir.")
    parser.add_argument("workload", choices=[name for name, each in WORKLOADS.items() if "weir" in each.rows])
    parser.add_argument("--share", type=float, default=1.0, help="share of the workload's rows")
    options = parser.parse_args()
    if not SAMPLER.exists():
        raise SystemExit("py-spy is missing: make bench-peers installs it")
    folder = BENCH / "runs" / "profile"
    with lock_folder(BENCH):
        find_java()
        folder.mkdir(parents=True)
        sys.stdout.write(run(WORKLOADS[options.workload], folder, options.share))
    return 0


if __name__ == "__main__":
    sys.exit(main())
