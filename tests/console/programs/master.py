"""A job master that does nothing but live as one: it records its states, has a child, and ends as it is told to.

It is told by files in `$WEIR_VAR/orders`: `exit-<run>` holds the code to exit with, `stubborn-<run>` makes it ignore
SIGTERM, `mute-<run>` lets it never touch $WEIR_BEAT_FILE. It tells by files in `$WEIR_VAR/seen`: `<run>-<token>.pids`
(its own and its child's), `<run>-<token>.eof`.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psycopg

RUN, TOKEN = int(sys.argv[1]), int(sys.argv[2])
ORDERS, SEEN = Path(os.environ["WEIR_VAR"], "orders"), Path(os.environ["WEIR_VAR"], "seen")
AT_ONCE = ORDERS / f"at-once-{RUN}"
MUTE = ORDERS / f"mute-{RUN}"
EXIT = ORDERS / f"exit-{RUN}"

# Like a Spark daemon: a process group of its own in the same session.
LEAVE_BEHIND = "import os, time; os.setpgid(0, 0); time.sleep(600)"


def record(state: str, ended: bool = False) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        connection.execute(
            "UPDATE weir_run SET state = %s, ended_at = CASE WHEN %s THEN now() END WHERE id = %s AND token = %s",
            (state, ended, RUN, TOKEN),
        )


def main() -> int:
    sys.stderr.write(f"master of run {RUN} with token {TOKEN}\n")
    child = subprocess.Popen([sys.executable, "-c", LEAVE_BEHIND])
    suspended: list[int] = []
    if not (ORDERS / f"stubborn-{RUN}").exists():
        signal.signal(signal.SIGTERM, lambda *_: suspended.append(1))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if AT_ONCE.exists():
        sys.stderr.write("nothing works\n")
        return int(AT_ONCE.read_text())
    record("running")
    pids = SEEN / f"{RUN}-{TOKEN}.tmp"
    pids.write_text(f"{os.getpid()} {child.pid}")
    pids.rename(pids.with_suffix(".pids"))
    while not suspended:
        if not MUTE.exists():
            Path(os.environ["WEIR_BEAT_FILE"]).touch()
        if select.select([0], [], [], 0.05)[0] and not os.read(0, 1):
            (SEEN / f"{RUN}-{TOKEN}.eof").touch()
            return 1
        if EXIT.exists():
            code = int(EXIT.read_text())
            EXIT.unlink()
            if code == 0:
                record("finished", ended=True)
            return code
    return 5


sys.exit(main())
