"""The policy that sets rows aside: dead letters of functions, exactly once, in files of JSON lines."""

from dataclasses import dataclass

import pyarrow.compute as pc

from runtime.connectors.formats import JsonLinesFormat
from runtime.connectors.sinks.json_lines import JsonLinesSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.errors import JobRejected
from runtime.operators.functions.set_aside import DEAD_LETTER
from runtime.s3 import is_bucket


@dataclass(frozen=True)
class SetAside:
    """A row for which the code of a step raises an error becomes a dead letter, and the stream goes on.

        trips.map("euros", to_euros, schema, on_error=weir.SetAside("/data/dead_letters"))

    Dead letters are JSON lines with operator, type of the error, message, traceback, time and row. They become visible
    with the checkpoint that holds the results of the rows around them. `dead_letters` reads them again.

    Args:
        path: folder of the dead letters; steps and jobs may share it.
        max_per_minute: dead letters of a subtask within a minute, 100,000 at most. One more fails the job, as without
            a policy: code that is broken would set all rows aside.
    """

    path: str
    max_per_minute: int = 100

    def sink(self) -> "DeadLetterSink":
        return DeadLetterSink(self.path, roll_on_checkpoint=True)


@dataclass(frozen=True)
class DeadLetterSink(JsonLinesSink):
    """Each checkpoint rolls the files: none is in progress at a restore, so a replay reads all dead letters before."""

    @property
    def dead_letter_folder(self) -> str:
        return self.path

    def check(self) -> None:
        if is_bucket(self.path):
            raise JobRejected(
                "needs-folder", "path", f"{self.path} must be a folder: the console reads dead letters there"
            )
        super().check()


def dead_letters(path: str, filter: pc.Expression | None = None) -> DirectorySource:
    """The dead letters of a folder as a bounded source, for a replay.

        again = flow.source("again", weir.dead_letters(folder, pc.field("operator") == "euros"))
        rows = again.map_batches("rows", weir.dead_letter_rows(TRIPS))
        trips.union("all", rows).map("euros", to_euros, schema, on_error=weir.SetAside(folder))

    The files are listed once, when the job starts with this source, and positions are part of each checkpoint. No dead
    letter is replayed twice, therefore, and no later one is replayed.

    Args:
        filter: the dead letters to replay; None: all.
    """
    return DirectorySource(path, JsonLinesFormat(DEAD_LETTER), bounded=True, filter=filter)
