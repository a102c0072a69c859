"""Deletion of packages: of those that nothing has used for `WEIR_PACKAGE_DAYS`, and by hand.

A package is in use while a version names it. A deletion locks its row, sees that no version does, and commits the state
`deleting`. From then on no version can name the package, and no upload can store it. Its file is deleted next, then its
row. The next pass completes a deletion that was interrupted. A file without a row stays: this database cannot know
whether that of another console, or the one that it was restored from, names it.
"""

from datetime import timedelta
from typing import Final

import structlog
from django.conf import settings
from django.contrib.admin.models import DELETION
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.accounts.rights import require_delete_package
from console.advisory_lock import try_lock
from console.checkpoints.storage import shared_store
from console.jobs.models import JobVersion, Package, PackageState, Pipeline
from console.jobs.pipelines import hand_over, record_package_act
from runtime.errors import WeirError
from runtime.io.package_cache import clean_cache, package_path
from runtime.io.store import check_mounted

MAX_NAMED_VERSIONS: Final = 3  #: in a refusal
_BATCH_ROWS: Final = 100
_PASS_LOCK: Final = 0x57454952_50414B50  #: key of the advisory lock: a pass at a time
_DELETION_LOCK: Final = 0x57454952_50414B44  #: two deletions could hand a pipeline to each other's package

log = structlog.get_logger(__name__)


def delete_package(user: User, digest: str) -> bool:
    """Deletes a package that no version names. Its file goes at once, or once the storage answers.

    Returns whether there was such a package.

    Raises:
        Refused: not permitted, or the package is in use or being described.
    """
    require_delete_package(user)
    with transaction.atomic():
        package = _lock(digest)
        if package is None:
            return False
        if refusal := deletion_refusal(package):
            raise Conflict("package-in-use", refusal)
        if package.state != PackageState.DELETING:
            _begin_deletion(package)
            record_package_act(user, package, DELETION, "Deleted")
    _complete_deletion(digest)
    return True


def deletion_refusal(package: Package) -> str:
    """Why a package cannot be deleted; "" if it can."""
    if package.is_active and not package.failed_attempts:  # a failure may be repeated without end
        return "The package is being described. Wait for the result."
    versions = package.versions.select_related("job").order_by("-pk")
    named = [f"version {each.number} of {each.job.name}" for each in versions[: MAX_NAMED_VERSIONS + 1]]
    if not named:
        return ""
    more = " and others" if len(named) > MAX_NAMED_VERSIONS else ""
    return f"The package is in use by {', '.join(named[:MAX_NAMED_VERSIONS])}{more}."


def unused_packages() -> QuerySet[Package]:
    """Packages that no version names, and that neither an upload nor a version has used for `WEIR_PACKAGE_DAYS`."""
    before = Now() - timedelta(days=settings.WEIR_PACKAGE_DAYS)
    ended = Package.objects.filter(state__in=(PackageState.READY, PackageState.REJECTED), used_at__lt=before)
    return ended.exclude(Exists(JobVersion.objects.filter(package=OuterRef("pk")))).order_by("used_at")


def remove_unused_packages() -> int:
    """A pass of the periodic task. Returns the number of packages whose deletion has begun."""
    count = 0
    try:
        with try_lock(_PASS_LOCK) as is_free:
            if is_free:
                for digest in list(unused_packages().values_list("pk", flat=True)[:_BATCH_ROWS]):
                    count += _remove_unused(digest)
                for digest in Package.objects.filter(state=PackageState.DELETING).values_list("pk", flat=True):
                    _complete_deletion(digest)
    finally:
        clean_cache()  # of this host
    return count


def _remove_unused(digest: str) -> bool:
    with transaction.atomic():
        package = _lock(digest)
        if package is None or not unused_packages().filter(pk=digest).exists():
            return False
        _begin_deletion(package)
    log.info("removing a package that no version names", package=digest)
    return True


def _lock(digest: str) -> Package | None:
    """The locked row. What the transaction reads next includes the versions that were committed before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_DELETION_LOCK])
    return Package.objects.select_for_update().filter(pk=digest).first()


def _begin_deletion(package: Package) -> None:
    """Marks the package, and gives its pipelines to the newest other package that offers them.

    The locks wait for a description that takes a pipeline over. Such a pipeline is skipped.
    """
    for pipeline in Pipeline.objects.select_for_update().filter(package=package).order_by("name"):
        hand_over(pipeline)
    Package.objects.filter(pk=package.pk).update(state=PackageState.DELETING)


def _complete_deletion(digest: str) -> None:
    """Deletes the file and the row of a marked package. While the storage is away, both stay for the next pass.

    The row is locked: an upload after another completion would lose its file.
    """
    with transaction.atomic():
        marked = Package.objects.select_for_update().filter(pk=digest, state=PackageState.DELETING).first()
        if marked is None:
            return
        try:
            check_mounted(str(settings.WEIR_STORAGE))
            shared_store().delete([package_path(digest)])
        except WeirError as error:  # no error of one package ends the pass
            log.warning("the file of a package is not deleted yet", package=digest, error=str(error))
            return
        marked.delete()
