"""The forms of the pages. Fields catch simple mistakes; services decide, and their refusals appear at the field."""

from collections.abc import Sequence
from typing import Any, Final, Self

from django import forms
from django.conf import settings

from console import formats
from console.accounts.models import Scope
from console.accounts.refusals import InvalidField, Refused
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.documents import read_document, write_document
from console.jobs.editing import MAX_SILENCE_S
from console.jobs.inputs import SETTINGS_SCHEMA
from console.jobs.masking import mask_settings
from console.jobs.models import Job, JobVersion
from console.jobs.services import MAX_DESCRIPTION_LENGTH, MAX_MESSAGE_LENGTH, MAX_NAME_LENGTH, parallelism_limit
from console.pages.packages import PackageLine
from console.ui.forms import schema_fields
from console.ui.forms.row_fields import MAX_ROWS, RowsField
from console.ui.forms.schema_fields import Schema
from console.ui.paging import whole_number
from runtime.access.redaction import mask
from runtime.core.job.key_groups import MAX_KEY_GROUPS

NEW_VERSION: Final = "Version {} is being compiled. Once it is ready, the next start or restore uses it."


class JobForm(forms.Form):
    name = forms.CharField(max_length=MAX_NAME_LENGTH, help_text="Unique name of the job.")
    description = forms.CharField(
        required=False, max_length=MAX_DESCRIPTION_LENGTH, widget=forms.Textarea(attrs={"rows": 2})
    )

    @classmethod
    def of(cls, data: Any, like: JobVersion | None) -> Self:
        """An empty form, or the facts of the job whose version `like` is duplicated."""
        if like is None:
            return cls(data)
        name = f"{like.job.name}, duplicate"[:MAX_NAME_LENGTH]
        return cls(data, initial={"name": name, "description": like.job.description})


class ParallelismForm(forms.Form):
    parallelism = forms.IntegerField(
        min_value=1, initial=2, help_text="Subtasks of each operator; a run needs as many slots."
    )
    max_parallelism = forms.IntegerField(
        min_value=1,
        max_value=MAX_KEY_GROUPS,
        required=False,
        help_text=(
            "Key groups, the upper limit of parallelism. Fixed once a run has state. "
            "Empty: derived from the parallelism, at least 128."
        ),
    )
    message = forms.CharField(
        required=False, max_length=MAX_MESSAGE_LENGTH, help_text="Why this version is made, for the list of versions."
    )


class PackageForm(forms.Form):
    """The code of a version: a package, or what is installed beside Weir."""

    package = forms.ChoiceField(
        required=False,
        help_text="The code of the version. Another package may have other parameters: errors name those to add.",
    )

    def __init__(self, packages: Sequence[PackageLine], digest: str, data: Any, *, has_installed_code: bool) -> None:
        super().__init__(data, initial={"package": digest})
        field = self.fields["package"]
        assert isinstance(field, forms.ChoiceField)
        installed = [("", "Installed beside Weir")] if has_installed_code else []
        field.choices = [*installed, *((each.digest, _label_of(each)) for each in packages)]
        field.required = not has_installed_code


def _label_of(package: PackageLine) -> str:
    """3f2a91bc0d12, of 28 Nov 2026, 10:03 UTC by anna: delays, flights."""
    by = f" by {package.created_by}" if package.created_by else ""
    return f"{package.short}, of {formats.utc(package.created_at)}{by}: {', '.join(package.pipelines)}"


class TokenForm(forms.Form):
    """A new API token."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Every token may read. It does what both its scopes and the permissions of its user allow.",
    )
    days = forms.IntegerField(min_value=1, max_value=3_650, help_text="Days until the token expires.")

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, initial={"days": settings.WEIR_TOKEN_DAYS})


class EditForm(JobForm):
    """Facts about a job that are for people, and its review policy. The service checks them."""

    owner = forms.CharField(required=False, help_text="Team or person to ask.")
    tags = forms.CharField(required=False, help_text="Words to filter by, separated by commas.")
    runbook = forms.CharField(required=False, help_text="Address of the instructions for operators.")
    max_silence_s = forms.IntegerField(
        label="Longest silence of an input, in seconds",
        required=False,
        min_value=0,
        max_value=MAX_SILENCE_S,
        help_text="Needs attention once a source has sent no records for longer. Empty: after 15 min of silence, if "
        "the source has sent records all day.",
    )
    review_policy = forms.ChoiceField(
        label="Restore of a snapshot that is not reviewed",
        choices=[("off", "allowed"), ("warn", "allowed with a warning"), ("refuse", "refused")],
        help_text="Recovery after a failure is never affected.",
    )
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON_LENGTH,
        help_text="Why these facts change, for the list of operations.",
    )

    @classmethod
    def of_job(cls, job: Job, data: Any) -> Self:
        names = ("name", "description", "owner", "runbook", "max_silence_s", "review_policy")
        return cls(data, initial={name: getattr(job, name) for name in names} | {"tags": ", ".join(job.tags)})

    def clean_max_silence_s(self) -> int:
        return self.cleaned_data["max_silence_s"] or 0

    def clean_tags(self) -> list[str]:
        return str(self.cleaned_data["tags"]).split(",")


class SchemaForm(forms.Form):
    """Fields generated from a JSON schema. `values` returns the input as JSON."""

    def __init__(self, schema: Schema, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.schema, most = schema, MAX_ROWS
        for parameter in schema_fields.parameters(schema):
            base_field = schema_fields.field(parameter)
            value = (self.initial or {}).get(parameter.name, base_field.initial)
            self.fields[parameter.name] = field = schema_fields.shown_as_text(base_field, value, most)
            most -= len(value or ()) if isinstance(field, RowsField) else 0

    @property
    def values(self) -> dict[str, Any]:
        return schema_fields.values(self.schema, self.cleaned_data)


class VersionForms:
    """The forms of a version: its package if there is a choice, parallelism, parameters of the pipeline, settings."""

    def __init__(
        self,
        schema: Schema,
        data: Any = None,
        like: JobVersion | None = None,
        fixed_by: str = "",
        package: PackageForm | None = None,
    ) -> None:
        """`fixed_by`: the newest checkpoint of the job, which has as many key groups as `like`; "" without state.

        `schema`: of the parameters in the package that is chosen.
        """
        self.package = package
        same = {"parallelism": like.parallelism, "max_parallelism": like.max_parallelism} if like else None
        self.parallelism = ParallelismForm(data, initial=same)
        if like and fixed_by:
            field = self.parallelism.fields["max_parallelism"]
            field.disabled, field.help_text = True, (
                f"Key groups. It stays {like.max_parallelism}: {fixed_by} could not be restored with another number. "
                "A version as YAML may have another one, for a start without state."
            )  # fmt: skip
        self.params = SchemaForm(schema, data, prefix="params", initial=mask(like.params, schema) if like else None)
        settings = mask_settings(like.settings) if like else None
        self.settings = SchemaForm(SETTINGS_SCHEMA, data, prefix="settings", initial=settings)

    def is_valid(self) -> bool:
        forms = [form for form in (self.package, self.parallelism, self.params, self.settings) if form is not None]
        return all([form.is_valid() for form in forms])  # noqa: C419 - all errors

    @property
    def values(self) -> dict[str, Any]:
        """The arguments of `create_version`."""
        code = self.package.cleaned_data if self.package else {}
        return {**self.parallelism.cleaned_data, **code, "params": self.params.values, "settings": self.settings.values}

    def add_refusal(self, refused: Refused) -> None:
        """Shows a refusal of the service at the field that it names."""
        head, _, path = (refused.field or "").partition(".")
        forms_of = {"params": self.params, "settings": self.settings, "package": self.package}
        form = forms_of.get(head) or self.parallelism
        add_refusal(form, path.partition(".")[0] if path else head, refused)


def add_refusal(form: forms.Form, name: str, refused: Refused) -> None:
    """Adds `refused` as an error of the field `name`, or of the whole form if it has no such field."""
    form.add_error(name if name in form.fields else None, refused.detail)


class YamlForm(forms.Form):
    """The values of a version as a YAML document, as `weir export` writes them."""

    document = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 24, "spellcheck": "false", "class": "mono"}),
        help_text="parallelism, max_parallelism, params and settings. A masked secret keeps its value.",
    )
    message = forms.CharField(
        required=False, max_length=MAX_MESSAGE_LENGTH, help_text="Why this version is made, for the list of versions."
    )

    @classmethod
    def of(cls, data: Any, newest: JobVersion | None, schema: Schema) -> Self:
        return cls(data, initial={"document": write_document(newest, schema) if newest else ""})

    def clean_document(self) -> dict[str, Any]:
        try:
            return read_document(self.cleaned_data["document"])
        except InvalidField as error:
            raise forms.ValidationError(error.detail) from error


class RescaleForm(forms.Form):
    """Version and parallelism that a running job goes on with."""

    version = forms.IntegerField(min_value=1)
    parallelism = forms.IntegerField(min_value=1, max_value=MAX_KEY_GROUPS)

    def limit(self, versions: Sequence[JobVersion]) -> int | None:
        """The highest parallelism of the chosen version; without a choice, of any; None if there is no version."""
        pk = whole_number(str(self["version"].value() or ""))
        limits = {version.pk: parallelism_limit(version) for version in versions}
        return limits.get(pk or 0, max(limits.values(), default=None))


class CloneForm(RescaleForm):
    """Version, parallelism and name of a clone, and whether it drops state that the version lacks."""

    name = forms.CharField(required=False, max_length=MAX_NAME_LENGTH)
    allow_unmapped = forms.BooleanField(required=False)


class RestoreForm(RescaleForm):
    """Checkpoint, version and parallelism of a restore. Only ids of this job are valid."""

    checkpoint = forms.IntegerField(min_value=1)
