"""The settings of a job version: refused by name where they are wrong, handed on as the machines want them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings, JobSettings, RetentionPolicy
from runtime.errors import JobRejected


def test_an_untuned_job_has_the_defaults() -> None:
    settings = msgspec.convert({}, JobSettings)
    assert settings.coordinator == CoordinatorSettings(interval_ms=5_000, timeout_ms=60_000, min_pause_ms=500)
    assert settings.restart == ExponentialDelay(initial_ms=1_000, max_ms=60_000), "ten restarts end within a minute"


def test_what_is_set_reaches_the_machines() -> None:
    raw = {
        "checkpoint_interval_ms": 100,
        "checkpoint_timeout_ms": 2_000,
        "min_pause_ms": 0,
        "max_concurrent_checkpoints": 2,
        "tolerable_failed_checkpoints": 3,
        "checkpoint_mode": "at_least_once",
        "restart_strategy": "fixed_delay",
        "restart_attempts": 0,
        "retained_hours": 48,
    }
    settings = msgspec.convert(raw, JobSettings)
    assert settings.retention == RetentionPolicy(5, hours=48)
    assert settings.coordinator == CoordinatorSettings(
        interval_ms=100,
        timeout_ms=2_000,
        min_pause_ms=0,
        max_concurrent=2,
        mode=CheckpointMode.AT_LEAST_ONCE,
        tolerable_failures=3,
    )
    assert settings.restart == FixedDelay(attempts=0, delay_ms=1_000)


@pytest.mark.parametrize(
    ("raw", "strategy"),
    [
        ({"restart_strategy": "none"}, NoRestart()),
        ({"restart_strategy": "fixed_delay", "restart_attempts": 2}, FixedDelay(attempts=2, delay_ms=1_000)),
        (
            {"restart_strategy": "exponential_delay"},
            ExponentialDelay(initial_ms=1_000, max_ms=60_000, multiplier=1.5, reset_after_ms=3_600_000, jitter=0.1),
        ),
        (
            {
                "restart_strategy": "exponential_delay",
                "restart_initial_backoff_ms": 10,
                "restart_max_backoff_ms": 10,
                "restart_backoff_multiplier": 3,
                "restart_reset_after_ms": 60_000,
                "restart_jitter": 0,
            },
            ExponentialDelay(initial_ms=10, max_ms=10, multiplier=3, reset_after_ms=60_000, jitter=0),
        ),
    ],
)
def test_a_restart_strategy_is_chosen_by_name(raw: dict[str, Any], strategy: RestartStrategy) -> None:
    """With Flink's defaults, where nothing else is said."""
    assert msgspec.convert(raw, JobSettings).restart == strategy


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"checkpoint_interval_ms": 99}, "checkpoint_interval_ms"),
        ({"max_concurrent_checkpoints": 0}, "max_concurrent_checkpoints"),
        ({"tolerable_failed_checkpoints": -1}, "tolerable_failed_checkpoints"),
        ({"retained_checkpoints": 0}, "retained_checkpoints"),
        ({"retained_hours": 0}, "retained_hours"),
        ({"min_pause_ms": "soon"}, "min_pause_ms"),
        ({"checkpoint_mode": "at_most_once"}, "checkpoint_mode"),
        ({"restart_strategy": "failure_rate"}, "restart_strategy"),
        ({"restart_backoff_multiplier": 0.5}, "restart_backoff_multiplier"),
        ({"restart_jitter": 1.5}, "restart_jitter"),
        ({"slot_memory_mb": 255}, r">= 256 - at `\$\.slot_memory_mb`"),
        ({"slot_memory_mb": "2g"}, "slot_memory_mb"),
        ({"restart_initial_backoff_ms": 10, "restart_max_backoff_ms": 9}, "restart_max_backoff_ms"),
        ({"on_corrupt_checkpoint": "ignore"}, "on_corrupt_checkpoint"),
        ({"fallback_limit_ms": 10}, "fallback_limit_ms"),
        ({"checkpoint_intervall_ms": 100}, "checkpoint_intervall_ms"),
        ({"alignment_timeout_ms": -1}, "alignment_timeout_ms"),
        ({"alignment_timeout_ms": 1, "checkpoint_mode": "at_least_once"}, "alignment_timeout_ms"),
        ({"alignment_timeout_ms": 1, "max_concurrent_checkpoints": 2}, "max_concurrent_checkpoints"),
        ({"alignment_timeout_ms": 5_000, "checkpoint_timeout_ms": 5_000}, "below `checkpoint_timeout_ms`"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(raw, JobSettings)


@pytest.mark.parametrize(
    ("settings", "values", "detail"),
    [
        (CoordinatorSettings, {"interval_ms": 0}, "interval_ms: must not be 0: expected `int` >= 1"),
        (CoordinatorSettings, {"interval_ms": 86_400_001}, "interval_ms: .*<= 86400000"),
        (CoordinatorSettings, {"interval_ms": 0.5}, "interval_ms: must not be 0.5: expected `int"),
        (CoordinatorSettings, {"timeout_ms": -1}, "timeout_ms"),
        (CoordinatorSettings, {"min_pause_ms": -1}, "min_pause_ms"),
        (CoordinatorSettings, {"max_concurrent": 0}, "max_concurrent"),
        (CoordinatorSettings, {"tolerable_failures": -1}, "tolerable_failures"),
        (CoordinatorSettings, {"mode": "at_most_once"}, "mode"),
        (CoordinatorSettings, {"alignment_timeout_ms": -1}, "alignment_timeout_ms"),
        (CoordinatorSettings, {"alignment_timeout_ms": 1, "mode": CheckpointMode.AT_LEAST_ONCE}, "leave it at 0"),
        (CoordinatorSettings, {"alignment_timeout_ms": 1, "max_concurrent": 2}, "needs max_concurrent 1"),
        (CoordinatorSettings, {"alignment_timeout_ms": 60_000}, r"must be below timeout_ms \(60000\)"),
        (FixedDelay, {"attempts": -3}, "attempts"),
        (FixedDelay, {"delay_ms": -1}, "delay_ms"),
        (ExponentialDelay, {"initial_ms": -1}, "initial_ms"),
        (ExponentialDelay, {"max_ms": 10}, r"max_ms: must not be below initial_ms \(1000\)"),
        (ExponentialDelay, {"multiplier": 0.5}, "multiplier"),
        (ExponentialDelay, {"reset_after_ms": 0}, "reset_after_ms"),
        (ExponentialDelay, {"jitter": float("nan")}, "jitter"),
    ],
)
def test_a_setting_in_python_that_is_out_of_bounds_is_refused_by_name(
    settings: Callable[..., Any], values: dict[str, Any], detail: str
) -> None:
    with pytest.raises(JobRejected, match=detail) as error:
        settings(**values)
    assert (error.value.code, error.value.field) == ("bad-settings", next(iter(values)))


@pytest.mark.parametrize("strategy", ["fixed_delay", "exponential_delay"])
def test_every_bound_of_the_console_is_allowed_in_python(strategy: str) -> None:
    rules = msgspec.json.schema(JobSettings)["$defs"]["JobSettings"]["properties"]
    wide = {"restart_strategy": strategy, "restart_initial_backoff_ms": 1, "restart_max_backoff_ms": 86_400_000}
    bounds = [(name, rule[end]) for name, rule in rules.items() for end in ("minimum", "maximum") if end in rule]
    assert ("restart_delay_ms", 3_600_000) in bounds
    bounds.remove(("alignment_timeout_ms", 86_400_000))  # it must be below checkpoint_timeout_ms
    for name, value in bounds:
        settings = msgspec.convert(wide | {name: value}, JobSettings)
        assert settings.coordinator
        assert settings.restart
