"""A child process and its log."""

import subprocess
import sys
from pathlib import Path

from console.child_process import Child

LIMIT_S = 60
SPEAK_LATER = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("after")
"""


def test_the_tail_of_a_log_begins_where_the_child_began(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("of another child\n")
    with Child([sys.executable, "-c", "print('mine')"], log, stdin=subprocess.DEVNULL) as child:
        assert child.wait(LIMIT_S)
        assert child.log_tail() == ["mine"]


def test_the_tail_is_there_after_the_log_was_rotated(tmp_path: Path) -> None:
    """Rotated by copying and cutting, so the file is shorter now than it was when the child began."""
    log = tmp_path / "run.log"
    log.write_text("of another child\n" * 100)
    go = tmp_path / "go"
    with Child([sys.executable, "-c", SPEAK_LATER, str(go)], log, stdin=subprocess.DEVNULL) as child:
        log.write_text("")
        go.touch()
        assert child.wait(LIMIT_S)
        assert child.log_tail() == ["after"]


def test_the_tail_leaves_out_what_spark_writes_at_each_start(tmp_path: Path) -> None:
    """The lines of Spark 4 on Java 21. The log keeps them; other warnings stay in the tail."""
    startup = [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
        'Setting default log level to "WARN".',
        "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).",
        "26/11/22 20:53:11 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...",
        'Setting Spark log level to "WARN".',
        "26/11/22 20:53:11 WARN SparkConf: Note that spark.local.dir will be overridden by the value set",
    ]
    lines = ["26/11/22 20:53:12 WARN TaskSetManager: Lost task 0.0 in stage 1.0", "ValueError: no such table"]
    log = tmp_path / "run.log"
    program = f"print({chr(10).join([*startup, *lines])!r})"
    with Child([sys.executable, "-c", program], log, stdin=subprocess.DEVNULL) as child:
        assert child.wait(LIMIT_S)
        assert child.log_tail() == lines
    assert log.read_text().splitlines() == [*startup, *lines]
