"""The forms of the pages. Fields catch slips early; the services decide what is legal, and their refusals land here."""

from typing import Any

import msgspec
from django import forms

from console.accounts.refusals import Refused
from console.jobs.models import JobVersion
from console.jobs.services import DESCRIPTION_LENGTH_MAX, NAME_LENGTH_MAX
from console.ui import schema_fields
from console.ui.schema_fields import Schema
from runtime.core.keygroups import DEFAULT_MAX_PARALLELISM, MAX_KEY_GROUPS
from runtime.core.settings import JobSettings
from runtime.redaction import masked

SETTINGS_SCHEMA: Schema = msgspec.json.schema(JobSettings)

_SETTINGS_HELP = {
    "execution_mode": "Streaming takes checkpoints; batch runs a bounded job as a Spark plan; automatic is "
    "batch where every source is bounded.",
    "checkpoint_mode": "At least once: no channel waits for a barrier, and a restart may handle records again.",
    "checkpoint_interval_ms": "From the start of one checkpoint to the start of the next.",
    "checkpoint_timeout_ms": "A checkpoint that takes longer is given up.",
    "min_pause_ms": "Left between a completed checkpoint and the next. A failed one is tried again at once, but once.",
    "max_concurrent_checkpoints": "So many may be under way at once.",
    "tolerable_failed_checkpoints": "More failures in a row restart the job. Empty: none ever does.",
    "retained_checkpoints": "Completed checkpoints that are kept; savepoints are always kept.",
    "restart_strategy": "After a failure: none, attempts at a fixed delay, or ever longer delays without end.",
    "restart_attempts": "Fixed delay: failures in a row, without a completed checkpoint, before the run fails.",
    "restart_delay_ms": "Fixed delay: waited before each new attempt.",
    "restart_initial_backoff_ms": "Exponential delay: waited after the first failure.",
    "restart_max_backoff_ms": "Exponential delay: never waited longer.",
    "restart_backoff_multiplier": "Exponential delay: how much longer each failure makes it.",
    "restart_reset_after_ms": "Exponential delay: running for so long without a failure begins anew.",
    "restart_jitter": "Exponential delay: the part of it by which chance may change it.",
    "on_corrupt_checkpoint": "When the newest checkpoint cannot be read: fail and name the one before, or restore that "
    "one. Then output committed since is repeated: no longer exactly once.",
    "heartbeat_timeout_ms": "A slot that is silent for so long is taken for dead.",
    "slot_request_timeout_ms": "A new run waits so long for free slots, then it fails.",
    "slot_replacement_timeout_ms": "A run that has lost slots waits so long for others. Empty: without end.",
    "slot_start_timeout_ms": "From the start of the Spark tasks until every slot has connected.",
    "slot_memory_mb": "A slot whose process uses more memory fails by name instead of taking its host down. At least "
    "256; not in batch. Empty: no bound.",
    "spark": 'Settings of the run\'s Spark application as JSON, such as {"spark.executor.memory": "2g"}.',
}


class JobForm(forms.Form):
    name = forms.CharField(max_length=NAME_LENGTH_MAX, help_text="Unique; shown everywhere.")
    description = forms.CharField(
        required=False, max_length=DESCRIPTION_LENGTH_MAX, widget=forms.Textarea(attrs={"rows": 2})
    )


class ParallelismForm(forms.Form):
    parallelism = forms.IntegerField(
        min_value=1, initial=2, help_text="Subtasks of each operator; a run needs as many slots."
    )
    max_parallelism = forms.IntegerField(
        min_value=1,
        max_value=MAX_KEY_GROUPS,
        initial=DEFAULT_MAX_PARALLELISM,
        help_text="Key groups, and so the most subtasks an operator can ever have. Fixed once a run has state.",
    )


class SchemaForm(forms.Form):
    """Fields drawn from a JSON schema. `values` gives what was entered back as JSON."""

    def __init__(self, schema: Schema, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.schema = schema
        for parameter in schema_fields.parameters(schema):
            self.fields[parameter.name] = schema_fields.field(parameter)

    @property
    def values(self) -> dict[str, Any]:
        return schema_fields.values(self.schema, self.cleaned_data)


class SettingsForm(SchemaForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(SETTINGS_SCHEMA, *args, **kwargs)
        for name, text in _SETTINGS_HELP.items():
            if name in self.fields:
                self.fields[name].help_text = text


class VersionForms:
    """The three forms of a version, taken together: parallelism, parameters of the pipeline, settings."""

    def __init__(self, schema: Schema, data: Any = None, like: JobVersion | None = None) -> None:
        same = {"parallelism": like.parallelism, "max_parallelism": like.max_parallelism} if like else None
        self.parallelism = ParallelismForm(data, initial=same)
        self.params = SchemaForm(schema, data, prefix="params", initial=masked(like.params, schema) if like else None)
        self.settings = SettingsForm(data, prefix="settings", initial=like.settings if like else None)

    def is_valid(self) -> bool:
        return all([form.is_valid() for form in (self.parallelism, self.params, self.settings)])  # noqa: C419 - all errors

    @property
    def values(self) -> dict[str, Any]:
        """The arguments of `create_version`."""
        return {**self.parallelism.cleaned_data, "params": self.params.values, "settings": self.settings.values}

    def refuse(self, refused: Refused) -> None:
        """Puts a refusal of the service beside the field that it names."""
        head, _, rest = (refused.field or "").partition(".")
        form = {"params": self.params, "settings": self.settings}.get(head, self.parallelism)
        put(form, rest.partition(".")[0] if rest else head, refused)


def put(form: forms.Form, name: str, refused: Refused) -> None:
    """`refused` as an error of the field `name`, or of the whole form where it has no such field."""
    form.add_error(name if name in form.fields else None, refused.detail)


class RestoreForm(forms.Form):
    """What to restore, into what. Only ids of this job are valid."""

    checkpoint = forms.IntegerField(min_value=1)
    version = forms.IntegerField(min_value=1)
    parallelism = forms.IntegerField(min_value=1, max_value=MAX_KEY_GROUPS)
