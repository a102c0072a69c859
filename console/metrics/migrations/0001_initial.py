"""The numbers of runs: partitioned tables, and how far they are aggregated."""

from django.db import migrations, models

# Django cannot create a partitioned table. `console.metrics.partitions` adds and drops the partitions by time. The
# default partitions take rows for which no partition exists yet, so that an insert of a job master never fails.
CREATE = """
CREATE TABLE weir_metrics (
    step_s smallint NOT NULL,
    run_id bigint NOT NULL,
    at timestamptz NOT NULL,
    operator text NOT NULL,
    token bigint NOT NULL,
    span_ms integer NOT NULL,
    records_in bigint NOT NULL,
    records_out bigint NOT NULL,
    bytes_in bigint NOT NULL,
    bytes_out bigint NOT NULL,
    busy real,
    backpressured real,
    skew real,
    watermark bigint,
    processing_lag_ms bigint,
    event_lag_ms bigint,
    in_flight_bytes bigint,
    state_bytes bigint,
    start_delay_ms real,
    pre_barrier_ms real,
    alignment_ms real,
    sync_ms real,
    async_ms real,
    checkpoints integer,
    checkpoints_failed integer,
    checkpoint_ms real,
    checkpoint_bytes bigint,
    commit_ms real,
    cpu_ms bigint,
    memory_bytes bigint,
    PRIMARY KEY (step_s, run_id, at, operator, token)
) PARTITION BY LIST (step_s);
CREATE TABLE weir_metrics_5s PARTITION OF weir_metrics FOR VALUES IN (5) PARTITION BY RANGE (at);
CREATE TABLE weir_metrics_1m PARTITION OF weir_metrics FOR VALUES IN (60) PARTITION BY RANGE (at);
CREATE TABLE weir_metrics_15m PARTITION OF weir_metrics FOR VALUES IN (900) PARTITION BY RANGE (at);
CREATE TABLE weir_metrics_5s_rest PARTITION OF weir_metrics_5s DEFAULT;
CREATE TABLE weir_metrics_1m_rest PARTITION OF weir_metrics_1m DEFAULT;
CREATE TABLE weir_metrics_15m_rest PARTITION OF weir_metrics_15m DEFAULT;
CREATE TABLE weir_subtask_metrics (
    run_id bigint NOT NULL,
    at timestamptz NOT NULL,
    token bigint NOT NULL,
    operators jsonb NOT NULL,
    PRIMARY KEY (run_id, at, token)
) PARTITION BY RANGE (at);
CREATE TABLE weir_subtask_metrics_rest PARTITION OF weir_subtask_metrics DEFAULT;
"""

FLOWS = ("records_in", "records_out", "bytes_in", "bytes_out")
FRACTIONS = ("busy", "backpressured", "skew")
LEVELS = ("watermark", "processing_lag_ms", "event_lag_ms", "in_flight_bytes", "state_bytes")
PHASES = ("start_delay_ms", "pre_barrier_ms", "alignment_ms", "sync_ms", "async_ms")


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(CREATE)],
            state_operations=[
                migrations.CreateModel(
                    name="Metrics",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "step_s",
                                "run_id",
                                "at",
                                "operator",
                                "token",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("step_s", models.SmallIntegerField()),
                        ("run_id", models.BigIntegerField()),
                        ("at", models.DateTimeField()),
                        ("operator", models.TextField()),
                        ("token", models.BigIntegerField()),
                        ("span_ms", models.IntegerField()),
                        *((name, models.BigIntegerField()) for name in FLOWS),
                        *((name, models.FloatField(null=True)) for name in FRACTIONS),
                        *((name, models.BigIntegerField(null=True)) for name in LEVELS),
                        *((name, models.FloatField(null=True)) for name in PHASES),
                        ("checkpoints", models.IntegerField(null=True)),
                        ("checkpoints_failed", models.IntegerField(null=True)),
                        ("checkpoint_ms", models.FloatField(null=True)),
                        ("checkpoint_bytes", models.BigIntegerField(null=True)),
                        ("commit_ms", models.FloatField(null=True)),
                        ("cpu_ms", models.BigIntegerField(null=True)),
                        ("memory_bytes", models.BigIntegerField(null=True)),
                    ],
                    options={"db_table": "weir_metrics"},
                ),
                migrations.CreateModel(
                    name="SubtaskMetrics",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "run_id",
                                "at",
                                "token",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("run_id", models.BigIntegerField()),
                        ("at", models.DateTimeField()),
                        ("token", models.BigIntegerField()),
                        ("operators", models.JSONField()),
                    ],
                    options={"db_table": "weir_subtask_metrics"},
                ),
            ],
        ),
        migrations.CreateModel(
            name="RollUp",
            fields=[
                ("step_s", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("until", models.DateTimeField()),
            ],
            options={"db_table": "weir_metrics_rollup"},
        ),
    ]
