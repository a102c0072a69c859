"""What the job master on Spark makes of the settings that the console stored."""

import pytest

from runtime.core.settings import JobSettings
from runtime.errors import JobRejected
from runtime.hosts.spark import settings_of
from runtime.io.postgres import RunRow


def row(**settings: object) -> RunRow:
    return RunRow(
        job_id=1,
        job_name="words",
        version_id=1,
        version_parallelism=1,
        parallelism=1,
        max_parallelism=128,
        pipeline="wordcount",
        params={},
        settings=settings,
        state="starting",
        token=1,
        allow_unmapped=False,
    )


def test_what_is_left_out_has_its_default() -> None:
    assert settings_of(row(retained_checkpoints=2)) == JobSettings(retained_checkpoints=2)


@pytest.mark.parametrize("settings", [{"of_newer_software": 1}, {"retained_checkpoints": 0}, {"restart_strategy": "?"}])
def test_settings_that_this_software_cannot_obey_end_the_run_instead_of_killing_masters(
    settings: dict[str, object],
) -> None:
    with pytest.raises(JobRejected) as refused:
        settings_of(row(**settings))
    assert (refused.value.code, refused.value.field) == ("bad-settings", "settings")
