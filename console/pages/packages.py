"""Packages as pages show them: lines of a list, a package with the versions that name it, and choices of a form."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Count, Exists, F, Func, JSONField, OuterRef, Q, QuerySet, Sum, Value

from console.jobs.models import JobVersion, Package, PackageState, Pipeline
from runtime.core.job.code_identity import short_digest

MAX_LINES: Final = 200  #: newest packages of the list, and of the choices of a form
MAX_VERSIONS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLine:
    """A package without its description, which may have a megabyte."""

    digest: str
    size: int
    state: str
    error: dict[str, Any] | None
    created_at: datetime
    created_by: str
    used_at: datetime
    pipelines: tuple[str, ...]
    distributions: tuple[str, ...]  #: with their versions
    versions: int  #: that name it

    @property
    def short(self) -> str:
        return short_digest(self.digest)


@dataclass(frozen=True, slots=True)
class PackageTotals:
    count: int
    nbytes: int
    unused: int  #: packages that no version names


def package_totals() -> PackageTotals:
    """The number and size of all packages in the storage."""
    unused = ~Exists(JobVersion.objects.filter(package=OuterRef("pk")))
    totals = Package.objects.aggregate(
        count=Count("pk"), nbytes=Sum("size", default=0), unused=Count("pk", filter=unused)
    )
    return PackageTotals(**totals)


def package_lines(*chosen: Q) -> list[PackageLine]:
    """The newest packages that match, newest first."""
    names = Func(
        F("description"), Value("$.pipelines[*].name"), function="jsonb_path_query_array", output_field=JSONField()
    )
    rows: QuerySet[Any, Any] = Package.objects.filter(*chosen).annotate(names=names, count=Count("versions"))
    columns = ("digest", "size", "state", "error", "created_at", "created_by__username", "used_at",
               "description__distributions", "names", "count")  # fmt: skip
    return [
        PackageLine(
            digest=row["digest"], size=row["size"], state=row["state"], error=row["error"],
            created_at=row["created_at"], created_by=row["created_by__username"] or "", used_at=row["used_at"],
            pipelines=tuple(sorted(row["names"] or ())),
            distributions=tuple(
                f"{name} {version}" for name, version in sorted((row["description__distributions"] or {}).items())
            ),
            versions=row["count"],
        )
        for row in rows.order_by("-created_at", "digest").values(*columns)[:MAX_LINES]
    ]  # fmt: skip


def package_line(digest: str) -> PackageLine | None:
    return next(iter(package_lines(Q(pk=digest))), None)


def versions_with(digest: str) -> list[JobVersion]:
    """The newest versions that name a package, newest first."""
    versions = JobVersion.objects.filter(package=digest).select_related("job", "created_by")
    return list(versions.defer("graph", "params").order_by("-pk")[:MAX_VERSIONS])


def packages_for(pipeline: Pipeline, chosen: Package | None) -> list[PackageLine]:
    """The newest packages that a version of a job of `pipeline` may name, newest first, and `chosen` if it is older.

    A form without the package that was chosen before would choose another.
    """
    offers = Q(description__pipelines__contains=[{"name": pipeline.name}])
    lines = package_lines(Q(state=PackageState.READY), offers)
    if chosen is None or chosen.pk in {line.digest for line in lines}:
        return lines
    return [*lines, *package_lines(Q(pk=chosen.pk))]
