"""Numbers of runs over time.

The job master inserts the finest rows with each live report (`queries.sql`, `add_history`); `console.metrics.rollup`
inserts the coarser rows. Both tables are partitioned by Postgres (`console.metrics.partitions`). They have no foreign
keys: a check per row would lock the run's row, and retention removes the rows of a deleted run.
"""

from typing import ClassVar, Final

from django.db import models

WHOLE_RUN: Final = ""  #: name of the operator in rows of the run as a whole
FINEST_STEP_S: Final = 5


class Metrics(models.Model):
    """Numbers of an operator, or of a run as a whole, in an interval of `step_s` seconds that begins at `at`.

    Flows (records, bytes, processor time, checkpoints) are sums over the interval. `busy`, `backpressured` and `skew`
    are means. Levels and checkpoint phases are maxima. `commit_ms` is the time from the last acknowledgement of the
    longest checkpoint to its record. `span_ms` is the time that the numbers cover: less than the interval if the run
    began, ended or restarted in it, more if the master was suspended.
    """

    pk = models.CompositePrimaryKey("step_s", "run_id", "at", "operator", "token")
    step_s = models.SmallIntegerField()
    run_id = models.BigIntegerField()
    at = models.DateTimeField()
    operator = models.TextField()
    token = models.BigIntegerField()  #: of the attempt; 0 in rolled-up rows
    span_ms = models.IntegerField()
    records_in = models.BigIntegerField()
    records_out = models.BigIntegerField()
    bytes_in = models.BigIntegerField()
    bytes_out = models.BigIntegerField()
    busy = models.FloatField(null=True)
    backpressured = models.FloatField(null=True)
    skew = models.FloatField(null=True)
    watermark = models.BigIntegerField(null=True)
    processing_lag_ms = models.BigIntegerField(null=True)
    event_lag_ms = models.BigIntegerField(null=True)
    in_flight_bytes = models.BigIntegerField(null=True)
    state_bytes = models.BigIntegerField(null=True)
    start_delay_ms = models.FloatField(null=True)
    pre_barrier_ms = models.FloatField(null=True)
    alignment_ms = models.FloatField(null=True)
    sync_ms = models.FloatField(null=True)
    async_ms = models.FloatField(null=True)
    # of the run as a whole
    checkpoints = models.IntegerField(null=True)
    checkpoints_failed = models.IntegerField(null=True)
    checkpoint_ms = models.FloatField(null=True)
    commit_ms = models.FloatField(null=True)
    checkpoint_bytes = models.BigIntegerField(null=True)
    cpu_ms = models.BigIntegerField(null=True)
    memory_bytes = models.BigIntegerField(null=True)

    objects: ClassVar[models.Manager["Metrics"]] = models.Manager()  # mypy finds none beside a composite key

    class Meta:
        db_table = "weir_metrics"

    def __str__(self) -> str:
        return f"{self.operator or 'run'} at {self.at}"


class SubtaskMetrics(models.Model):
    """Numbers of the subtasks of all operators of a run, in an interval of 5 s.

    `operators` has a list per operator and number, with an entry per subtask; `index` has the subtasks' indexes.
    """

    pk = models.CompositePrimaryKey("run_id", "at", "token")
    run_id = models.BigIntegerField()
    at = models.DateTimeField()
    token = models.BigIntegerField()
    operators = models.JSONField()

    objects: ClassVar[models.Manager["SubtaskMetrics"]] = models.Manager()

    class Meta:
        db_table = "weir_subtask_metrics"

    def __str__(self) -> str:
        return f"subtasks of run {self.run_id} at {self.at}"


class RollUp(models.Model):
    """Progress of the roll-up to intervals of `step_s` seconds: those before `until` exist."""

    step_s = models.SmallIntegerField(primary_key=True)
    until = models.DateTimeField()

    class Meta:
        db_table = "weir_metrics_rollup"

    def __str__(self) -> str:
        return f"{self.step_s} s until {self.until}"
