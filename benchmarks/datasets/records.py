"""Records in the shape of ShuffleBench (github.com/dynatrace-research/ShuffleBench): 1 KB of opaque text per consumer.

As its matching rules may be skewed, so are the consumers: of a million, a hundredth of the records belongs to the
first, and half of them to the first 125,000. The first eight characters of a record are a number that follows from its
consumer. The rest repeats 32 digits, so that the files are a tenth of the size of their rows.
"""

from typing import Final

from benchmarks.datasets.table import Table, event_time

US_PER_ROW: Final = 200
CONSUMERS: Final = 1_000_000
RECORD_BYTES: Final = 1_024
NUMBER_DIGITS: Final = 8  #: of the number at the start of a record
_CONSUMER: Final = f"cast(floor(power(mixed(id, 1) / 4194304.0, 3) * {CONSUMERS}) as bigint)"
_NUMBER: Final = f"lpad(cast(mixed({_CONSUMER}, 2) as varchar), {NUMBER_DIGITS}, '0')"

TABLES: Final = {
    "records": Table(
        columns={
            "consumer": ("string", f"uuid_text('consumer', {_CONSUMER})"),
            "event_time": ("timestamp", event_time(US_PER_ROW)),
            "record": ("string", f"left({_NUMBER} || repeat(md5('' || id), 32), {RECORD_BYTES})"),
        },
        has_late_rows=True,
    )
}
