"""A reader in another process and retention, at the same checkpoint of a running job."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from runtime.core.checkpoint.retention_plan import files_of
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.core.snapshot.pins import PINS_FOLDER
from runtime.io.pins import PinnedCheckpoint
from tests.jobs.gated import Gated
from tests.jobs.live import counts_in, running
from tests.jobs.numbers import counts, expected_counts
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SOURCE = Gated(total=50)
READS = """
import json, sys, threading, time
from runtime.io import pins
pins.PIN_VALIDITY_MS, pins.RENEWAL_INTERVAL_MS = 4_000, 200
from spark_jobs.state.rows import find_state, open_checkpoint
opened = open_checkpoint(sys.argv[1])
print("open", flush=True)
def keep():
    while True:
        opened.renew_pin()
        time.sleep(0.1)
threading.Thread(target=keep, daemon=True).start()
sys.stdin.readline()
state = find_state(opened, "counts", "aggregates")
found = [row for batch in state.rows(range(128)) for row in batch.to_pylist()]
print(json.dumps({row["key"]: [row["n:count"], row["total:sum"]] for row in found}), flush=True)
time.sleep(600)
"""


def test_retention_in_the_middle_of_a_read_leaves_what_is_read_until_its_reader_has_died(tmp_path: Path) -> None:
    storage, output = tmp_path / "storage", tmp_path / "out"
    with running(counts(SOURCE, output).compile(2), storage, retained=2) as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) >= SOURCE.total * SOURCE.splits)
        run.checkpoints(2)
        before, read = run.records.completed[-2:]
        PinnedCheckpoint(str(storage), read.folder).renew()  # the process takes longer to start than a checkpoint
        (pin,) = (storage / PINS_FOLDER).iterdir()
        arguments = [sys.executable, "-c", READS, str(storage / read.folder)]
        with subprocess.Popen(arguments, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            try:
                assert reader.stdout.readline() == "open\n"
                pin.unlink()
                run.checkpoints(6)
                run.wait_for(lambda: not (storage / before.folder / MANIFEST_FILE).exists())
                assert all((storage / path).exists() for path in files_of(read.manifest))
                reader.stdin.write("read\n")
                reader.stdin.flush()
                read_counts = {int(key): tuple(value) for key, value in json.loads(reader.stdout.readline()).items()}
                assert read_counts == expected_counts(SOURCE.numbers)
            finally:
                reader.send_signal(signal.SIGKILL)
        run.checkpoints(1)
        until(lambda: not (storage / read.folder / MANIFEST_FILE).exists())
        run.checkpoints(2)
        newest = run.manifests[-1]
        assert all((storage / path).exists() for path in files_of(newest))
        assert counts_in(newest, storage, SOURCE.keys) == expected_counts(SOURCE.numbers)
