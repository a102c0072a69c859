"""Which of Spark's settings a version may choose."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runtime.access.spark_settings import (
    SETTINGS_VARIABLE,
    VALUES,
    check_spark_settings,
    set_added_settings,
    set_slot_server,
    slot_server,
    slot_server_token,
)
from runtime.core.job.settings import JobSettings
from runtime.launch.event_log import event_log_settings

#: The whole command line of the JVM stands in the name: PySpark joins name and value by `=`.
COMMAND_IN_NAME = 'spark.driver.extraJavaOptions=-XX:OnOutOfMemoryError="touch proof" -XX:MaxMetaspaceSize'


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spark.speculation", "a slot must not run twice"),
        ("spark.dynamicAllocation.enabled", "slots stay as long as the run"),
        ("spark.task.maxFailures", "restarts begin from the last checkpoint"),
        ("spark.stage.maxConsecutiveAttempts", "restarts begin from the last checkpoint"),
        ("spark.ui.killEnabled", "the run page links Spark's UI"),
        ("spark.authenticate.secret", "secrets belong to the installation"),
        ("spark.executor.extraJavaOptions", "it loads code"),
        ("spark.jars.packages", "it loads code"),
        ("executor.memory", "their names begin with 'spark.'"),
        (COMMAND_IN_NAME, "not the name of a Spark setting"),
        ("spark.executor.memory ", "not the name of a Spark setting"),
        ("spark.executor.memory\n", "not the name of a Spark setting"),
        ("spark.hadoop.fs.s3a.endpoint", "an administrator adds names in WEIR_SPARK_SETTINGS"),
        ("spark.executor.Memory", "an administrator adds names in WEIR_SPARK_SETTINGS"),
        ("spark.driver.defaultExtraClassPath", "it loads code"),
        ("spark.sql.catalog.mine", "it loads code"),
        ("spark.sql.extensions", "it loads code"),
        ("spark.redaction.regex", "an administrator adds names in WEIR_SPARK_SETTINGS"),
    ],
)
def test_a_setting_outside_the_list_is_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_spark_settings({"spark.executor.memory": "2g", name: "1"})


@pytest.mark.parametrize("value", ["2g -Dx=y", "${env:DATABASE_URL}", "", "2g\n", "two", "2g;", "٢g", "-1g"])
@pytest.mark.parametrize("name", ["spark.executor.memory", "spark.locality.wait", "spark.sql.shuffle.partitions"])
def test_a_value_of_another_form_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be .*, not "):
        check_spark_settings({name: value})


def test_each_listed_name_takes_a_value_of_its_form() -> None:
    examples = {"size": "512m", "limit": "-1", "time": "30s", "count": "3", "fraction": "0.6", "switch": "true"}
    check_spark_settings({name: examples[kind.name] for name, kind in VALUES.items()})


@pytest.fixture
def _no_names_are_added() -> Iterator[None]:
    yield
    set_added_settings("")


@pytest.mark.usefixtures("_no_names_are_added")
def test_an_administrator_adds_names_but_no_code() -> None:
    added = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "Europe/Berlin"}
    with pytest.raises(ValueError, match=SETTINGS_VARIABLE):
        check_spark_settings(added)
    set_added_settings(f"{' '.join(added)} spark.jars spark.driver.extraJavaOptions {COMMAND_IN_NAME}")
    check_spark_settings(added)
    for name in ("spark.jars", "spark.driver.extraJavaOptions", COMMAND_IN_NAME):
        with pytest.raises(ValueError, match=r"it loads code|not the name"):
            check_spark_settings({name: "1"})
    for value in ("${env:DATABASE_URL}", "a\nb", "a\0b"):
        with pytest.raises(ValueError, match=r"`spark\.sql\.ansi\.enabled` must be"):
            check_spark_settings({"spark.sql.ansi.enabled": value})


@pytest.mark.usefixtures("_no_names_are_added")
@pytest.mark.parametrize("name", [
    "spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions", "spark.sql.extensions", "spark.serializer",
    "spark.closure.serializer", "spark.kryo.registrator", "spark.kryo.classesToRegister", "spark.plugins",
    "spark.executor.resource.gpu.discoveryScript", "spark.sql.queryExecutionListeners", "spark.extraListeners",
    "spark.sql.streaming.streamingQueryListeners", "spark.metrics.conf", "spark.shuffle.manager", "spark.archives",
    "spark.sql.sources.commitProtocolClass", "spark.sql.streaming.stateStore.providerClass", "spark.yarn.dist.jars",
    "spark.hadoop.fs.s3a.impl", "spark.hadoop.fs.s3a.aws.credentials.provider", "spark.submit.pyFiles",
    "spark.sql.hive.metastore.jars.path", "spark.kubernetes.executor.podTemplateFile", "spark.r.command",
])  # fmt: skip
def test_no_administrator_adds_a_name_that_loads_code(name: str) -> None:
    set_added_settings(name)
    with pytest.raises(ValueError, match=r"it loads code|the job master is the driver"):
        check_spark_settings({name: "x"})


def test_the_server_of_slots_has_the_token_of_the_environment() -> None:
    set_slot_server("sc://head:15002", "hidden")
    try:
        assert (slot_server(), slot_server_token()) == ("sc://head:15002", "hidden")
    finally:
        set_slot_server("")
    assert (slot_server(), slot_server_token()) == ("", "")


def test_a_spark_connect_server_has_its_own_settings() -> None:
    """Its memory, cores and retries were set at its start. A run in BATCH has its own application."""
    set_slot_server("sc://head:15002/;token=hidden")
    try:
        spark = {"spark.executor.memory": "2g"}
        with pytest.raises(msgspec.ValidationError, match=r"`spark\.executor\.memory` .* of SPARK_REMOTE") as refusal:
            msgspec.convert({"spark": spark}, JobSettings)
        assert "hidden" not in str(refusal.value)
        assert msgspec.convert({"spark": spark, "execution_mode": "batch"}, JobSettings).spark == spark
        msgspec.convert({}, JobSettings)
    finally:
        set_slot_server("")


def test_the_settings_of_a_version_hold_them() -> None:
    """They come as JSON; the error names the field."""
    settings = msgspec.convert({"spark": {"spark.executor.memory": "2g"}}, JobSettings)
    assert settings.spark == {"spark.executor.memory": "2g"}
    with pytest.raises(msgspec.ValidationError, match=r"`spark\.speculation` cannot be chosen here"):
        msgspec.convert({"spark": {"spark.speculation": "true"}}, JobSettings)
    with pytest.raises(msgspec.ValidationError, match=r"not the name of a Spark setting"):
        msgspec.convert({"spark": {COMMAND_IN_NAME: "12m"}}, JobSettings)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$\.spark"):
        msgspec.convert({"spark": {"spark.executor.cores": 2}}, JobSettings)


def test_the_event_log_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    assert event_log_settings({}) == {}
    settings = event_log_settings({"WEIR_SPARK_EVENT_LOG": str(tmp_path / "events")})
    assert settings["spark.eventLog.dir"] == (tmp_path / "events").as_uri()
    assert (tmp_path / "events").is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.autoBroadcastJoinThreshold", "-1"),
        ("spark.sql.autoBroadcastJoinThreshold", "10m"),
        ("spark.memory.fraction", ".6"),
        ("spark.memory.storageFraction", "0.5"),
    ],
)
def test_values_as_spark_documents_them_are_allowed(name: str, value: str) -> None:
    check_spark_settings({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.autoBroadcastJoinThreshold", "-2"),
        ("spark.sql.autoBroadcastJoinThreshold", "-1m"),
        ("spark.sql.files.maxPartitionBytes", "-1"),
        ("spark.memory.fraction", "."),
        ("spark.memory.fraction", "1.1"),
    ],
)
def test_other_values_below_0_and_above_1_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be .*, not "):
        check_spark_settings({name: value})
