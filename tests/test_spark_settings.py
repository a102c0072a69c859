"""What a version may choose of Spark's settings."""

from pathlib import Path

import msgspec
import pytest

from runtime.core.job.settings import JobSettings
from runtime.launch.event_log import event_log_settings
from runtime.spark_settings import check_spark_settings


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
    ],
)
def test_what_would_break_the_runtime_is_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`.*{reason}"):
        check_spark_settings({"spark.executor.memory": "2g", name: "1"})


def test_the_settings_of_a_version_hold_them() -> None:
    """They come as JSON; the error names the field."""
    settings = msgspec.convert({"spark": {"spark.executor.memory": "2g"}}, JobSettings)
    assert settings.spark == {"spark.executor.memory": "2g"}
    with pytest.raises(msgspec.ValidationError, match=r"`spark\.speculation` cannot be chosen here"):
        msgspec.convert({"spark": {"spark.speculation": "true"}}, JobSettings)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$\.spark"):
        msgspec.convert({"spark": {"spark.executor.cores": 2}}, JobSettings)


def test_the_event_log_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    assert event_log_settings({}) == {}
    found = event_log_settings({"WEIR_SPARK_EVENT_LOG": str(tmp_path / "events")})
    assert found["spark.eventLog.dir"] == (tmp_path / "events").as_uri()
    assert (tmp_path / "events").is_dir()
