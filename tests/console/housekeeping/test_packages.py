"""Deletion of packages: the unused ones after their days, and by hand. The database decides each race."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission
from django.db import connection, transaction
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField, Refused
from console.housekeeping import packages
from console.housekeeping.packages import delete_package, remove_unused_packages
from console.jobs import services
from console.jobs.models import Job, JobVersion, Package, Pipeline
from console.jobs.pipelines import upload_package
from runtime.io.package_archive import write_archive
from runtime.io.package_cache import package_path
from runtime.io.store import open_store
from tests.console.api.test_api import check_problem
from tests.console.conftest import api_as
from tests.waiting import until

pytestmark = pytest.mark.django_db
DAYS = 40


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    storage = tmp_path / "storage"
    storage.mkdir()
    monkeypatch.setenv("WEIR_VAR", str(tmp_path))
    monkeypatch.setattr(settings, "WEIR_STORAGE", storage)
    return storage


def stored(name: str, *, days: int = 0, state: str = "ready", pipelines: tuple[str, ...] = ("sums",)) -> Package:
    """A package with its file, last used so many days ago."""
    archive, digest = archived(name)
    assert open_store(str(settings.WEIR_STORAGE)).create(package_path(digest), archive)
    offered = [{"name": each, "description": name, "schema": {"type": "object"}, "queries": {}} for each in pipelines]
    description = {"pipelines": offered} if state == "ready" else None
    package = Package.objects.create(digest=digest, size=len(archive), state=state, description=description)
    Package.objects.update(used_at=Now() - timedelta(days=days)) if days else None
    return package


def archived(name: str) -> tuple[bytes, str]:
    folder = Path(str(settings.WEIR_STORAGE)).with_name(f"source-{name}")
    folder.mkdir(exist_ok=True)
    (folder / "name.txt").write_text(name)
    return write_archive(folder)


def job_with(package: Package | None) -> Job:
    Pipeline.objects.update_or_create(name="sums", defaults={"package": package, "schema": {"type": "object"}})
    return Job.objects.create(name=f"job {Job.objects.count()}", pipeline="sums")


def add_version(user: User, job: Job, package: Package) -> JobVersion:
    return services.create_version(user, job, parallelism=1, params={}, package=package.pk)


def path_of(storage: Path, package: Package) -> Path:
    return storage / package_path(package.pk)


# ---------------------------------------------------------------- the periodic pass


def test_packages_that_no_version_names_go_after_their_days(operator: User, storage: Path) -> None:
    used, old, rejected = stored("used"), stored("old"), stored("rejected", state="rejected")
    describing = stored("describing", state="describing")
    add_version(operator, job_with(used), used)
    Package.objects.update(used_at=Now() - timedelta(days=DAYS))
    young = stored("young")
    assert remove_unused_packages() == 2
    assert set(Package.objects.all()) == {used, describing, young}
    assert [path_of(storage, each).exists() for each in (used, describing, young)] == [True] * 3
    assert [path_of(storage, each).exists() for each in (old, rejected)] == [False] * 2
    assert remove_unused_packages() == 0


def test_an_upload_and_a_version_make_a_package_young(operator: User) -> None:
    uploaded, named = stored("uploaded", state="rejected"), stored("named")
    Package.objects.update(used_at=Now() - timedelta(days=DAYS))
    upload_package(operator, archived("uploaded")[0])
    version = add_version(operator, job_with(named), named)
    version.delete()
    Package.objects.filter(pk=uploaded.pk).update(state="rejected")
    assert remove_unused_packages() == 0


def test_the_pipeline_of_a_deleted_package_is_that_of_the_newest_other_package(operator: User) -> None:
    stored("first", pipelines=("sums", "other"))
    second, newest = stored("second"), stored("newest", pipelines=("sums", "alone"))
    for name in ("sums", "alone"):
        Pipeline.objects.create(name=name, package=newest)
    delete_package(operator, newest.pk)
    offered = Pipeline.objects.get()
    assert (offered.name, offered.package, offered.description) == ("sums", second, "second")


def test_a_deletion_waits_for_the_storage_and_is_completed_by_a_later_pass(operator: User, storage: Path) -> None:
    package = stored("package")
    storage.rename(storage.with_name("gone"))
    delete_package(operator, package.pk)
    package.refresh_from_db()
    assert package.state == "deleting"
    with pytest.raises(InvalidField, match="is deleting"):
        add_version(operator, job_with(None), package)
    with pytest.raises(Conflict, match="is being deleted"):
        upload_package(operator, archived("package")[0])
    storage.with_name("gone").rename(storage)
    remove_unused_packages()
    assert not Package.objects.exists()
    assert not path_of(storage, package).exists()


def test_a_storage_that_cannot_be_used_ends_no_pass(
    monkeypatch: pytest.MonkeyPatch, storage: Path, tmp_path: Path
) -> None:
    """Its place is refused, which is no outage. The unused folders of this host are removed all the same."""
    package = stored("package", state="deleting")
    unpacked = tmp_path / "packages" / ("a" * 64)
    unpacked.mkdir(parents=True)
    unpacked.parent.chmod(0o700)
    os.utime(unpacked, (0, 0))
    monkeypatch.setattr(settings, "WEIR_STORAGE", "ftp://nowhere")
    assert remove_unused_packages() == 0
    assert Package.objects.get() == package
    assert not unpacked.exists()


def test_a_file_without_a_row_stays(operator: User, storage: Path) -> None:
    """It may be of the console of another database, or newer than the backup from which this one was restored."""
    package, foreign = stored("package"), stored("foreign")
    Package.objects.filter(pk=foreign.pk).delete()
    for path in (path_of(storage, package), path_of(storage, foreign)):
        os.utime(path, (0, 0))
    assert remove_unused_packages() == 0
    assert path_of(storage, foreign).exists()
    assert list(Package.objects.all()) == [package]


# ---------------------------------------------------------------- by hand


def test_a_deletion_by_hand_needs_its_permission_and_is_in_the_history_of_the_admin(
    operator: User, definer: User, storage: Path
) -> None:
    package = stored("package")
    address = f"/api/v1/packages/{package.pk}/"
    problem = check_problem(api_as(definer).delete(address), 403, "not-permitted")
    assert "the permission jobs.delete_package is required" in problem["detail"]
    definer.user_permissions.add(Permission.objects.get(codename="delete_package"))
    check_problem(api_as(definer, []).delete(address), 403, "not-permitted")
    assert path_of(storage, package).exists()
    answer = api_as(definer).delete(address)
    assert answer.status_code == 204
    entry = LogEntry.objects.get()
    assert (entry.user, entry.action_flag, entry.object_id) == (definer, DELETION, package.pk)
    assert entry.change_message == f"Deleted by request {answer['X-Request-Id']}."
    assert not path_of(storage, package).exists()
    assert api_as(definer).delete(address).status_code == 404


def test_a_package_in_use_is_not_deleted_and_its_versions_are_named(operator: User, storage: Path) -> None:
    package = stored("package")
    job = job_with(package)
    for _ in range(4):
        add_version(operator, job, package)
    problem = check_problem(api_as(operator).delete(f"/api/v1/packages/{package.pk}/"), 409, "package-in-use")
    versions = "version 4 of job 0, version 3 of job 0, version 2 of job 0 and others"
    assert problem["detail"] == f"The package is in use by {versions}."
    assert path_of(storage, package).exists()


def test_a_package_that_is_being_described_is_not_deleted(operator: User) -> None:
    package = stored("package", state="describing")
    with pytest.raises(Conflict, match="is being described"):
        delete_package(operator, package.pk)
    Package.objects.update(failed_attempts=1)  # a further attempt follows, in an outage without end
    assert delete_package(operator, package.pk)
    assert not Package.objects.exists()


# ---------------------------------------------------------------- races


def _is_waiting() -> bool:
    """Whether a connection waits for a lock of another."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
        return cursor.fetchone() is not None


def _in_thread(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Refused as refused:
        return refused
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_deletion_that_meets_a_new_version_waits_and_deletes_nothing(
    operator: User, storage: Path, *, by_hand: bool
) -> None:
    package = stored("package", days=DAYS)
    job = job_with(None)
    Pipeline.objects.all().update(package=None)
    delete = (lambda: delete_package(operator, package.pk)) if by_hand else remove_unused_packages
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            version = add_version(operator, job, package)
            deletion = pool.submit(_in_thread, delete)
            until(_is_waiting, 10)
        result = deletion.result()
    assert isinstance(result, Conflict) if by_hand else result == 0
    assert JobVersion.objects.get().pk == version.pk
    assert Package.objects.get().state == "ready"
    assert path_of(storage, package).exists()


@pytest.mark.django_db(transaction=True)
def test_a_version_that_meets_a_deletion_waits_and_is_refused(operator: User) -> None:
    package = stored("package")
    job = job_with(None)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            packages._begin_deletion(packages._lock(package.pk) or package)
            version = pool.submit(_in_thread, lambda: add_version(operator, job, package))
            until(_is_waiting, 10)
        refused = version.result()
    assert isinstance(refused, InvalidField)
    assert "was deleted; name another package" in str(refused)
    assert not JobVersion.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_pipeline_that_a_package_takes_over_during_a_deletion_stays(operator: User) -> None:
    """The description of the other package is not committed when the deletion reads the pipelines of its own."""
    old, described = stored("old"), stored("described", state="describing")
    Pipeline.objects.create(name="sums", package=old, schema={"type": "object"})
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Package.objects.filter(pk=described.pk).update(state="ready", description=old.description)
            Pipeline.objects.update(package=described)
            deletion = pool.submit(_in_thread, lambda: delete_package(operator, old.pk))
            until(_is_waiting, 10)
        assert deletion.result() is True
    assert Pipeline.objects.get().package == described


@pytest.mark.django_db(transaction=True)
def test_uploads_versions_and_deletions_at_once_leave_each_row_its_file(operator: User, storage: Path) -> None:
    """A version has its package, and a package its file, in whichever order they come."""
    archive, _ = archived("raced")
    job, refusals = job_with(None), 0
    for _ in range(25):
        start = threading.Barrier(4)
        package = Package.objects.filter(pk=upload_package(operator, archive).pk)
        package.update(state="ready", description={"pipelines": [{"name": "sums", "schema": {"type": "object"}}]})

        def at_once(work: Callable[[], Any], start: threading.Barrier = start) -> Any:
            start.wait()
            return _in_thread(work)

        row = package.get()
        with ThreadPoolExecutor(4) as pool:
            works: tuple[Callable[[], Any], ...] = (
                lambda: upload_package(operator, archive),
                partial(add_version, operator, job, row),
                *(2 * [partial(delete_package, operator, row.pk)]),
            )
            results = list(pool.map(at_once, works))
        refusals += sum(isinstance(result, Refused) for result in results)
        file = path_of(storage, row)
        assert not JobVersion.objects.exists() or package.get().state == "ready"
        assert package.exists() == file.exists(), results
        JobVersion.objects.all().delete()
        with suppress(Conflict):
            delete_package(operator, row.pk)
    assert refusals >= 25, "in each round a version or a deletion is refused"
