"""`ETag` and `If-Match`: a request that was made in view of another state of the job does nothing."""

from rest_framework.test import APIClient

from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from tests.console.api.test_api import check_problem
from tests.console.conftest import MakeRun

BODY = {"parallelism": 1, "params": {"path": "in"}}


def tag(api: APIClient, job: Job) -> str:
    answer = api.get(f"/api/v1/jobs/{job.pk}/")
    assert answer.status_code == 200
    return str(answer["ETag"])


def test_a_stale_version_request_makes_no_version(api: APIClient, job: Job, version: JobVersion) -> None:
    path, etag = f"/api/v1/jobs/{job.pk}/versions/", tag(api, job)
    assert api.post(path, BODY, headers={"If-Match": etag}).status_code == 202
    stale = check_problem(api.post(path, BODY, headers={"If-Match": etag}), 412, "stale", "/If-Match")
    assert stale["etag"] == tag(api, job)
    assert JobVersion.objects.count() == 2
    assert api.post(path, BODY, headers={"If-Match": f'"other", {tag(api, job)}'}).status_code == 202
    assert api.post(path, BODY, headers={"If-Match": "*"}).status_code == 202


def test_a_stale_act_does_nothing(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    path, etag = f"/api/v1/jobs/{run.job_id}/operations/", tag(api, run.job)
    Run.objects.update(state=RunState.RESTARTING)
    check_problem(api.post(path, {"kind": "cancel"}, headers={"If-Match": etag}), 412, "stale")
    assert not Operation.objects.exists()
    assert api.post(path, {"kind": "cancel"}, headers={"If-Match": tag(api, run.job)}).status_code == 202


def test_a_tag_covers_each_fact_that_a_user_edits(api: APIClient, job: Job) -> None:
    """Two editors of the review policy overwrote each other without a 412."""
    path, etag = f"/api/v1/jobs/{job.pk}/", tag(api, job)
    assert api.patch(path, {"review_policy": "refuse"}, headers={"If-Match": etag}).status_code == 200
    check_problem(api.patch(path, {"review_policy": "off"}, headers={"If-Match": etag}), 412, "stale")


def test_live_numbers_do_not_make_a_tag_stale(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    etag = tag(api, run.job)
    Run.objects.update(live={"operators": {}}, lease_beat=7)
    assert tag(api, run.job) == etag


def test_an_edit_needs_a_tag_and_compares_it_strongly(api: APIClient, job: Job) -> None:
    path = f"/api/v1/jobs/{job.pk}/"
    check_problem(api.patch(path, {"owner": "ada"}), 428, "precondition-required", "/If-Match")
    check_problem(api.patch(path, {"owner": "ada"}, headers={"If-Match": f"W/{tag(api, job)}"}), 412, "stale")
    assert Job.objects.get().owner == ""
    assert api.patch(path, {"owner": "ada"}, headers={"If-Match": tag(api, job)}).json()["owner"] == "ada"


def test_compression_does_not_make_a_tag_weak(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    answer = api.get(f"/api/v1/jobs/{run.job_id}/", headers={"Accept-Encoding": "gzip"})
    assert len(answer.content) > 200, "shorter content is never compressed"
    assert (answer["ETag"][0], "Content-Encoding" in answer) == ('"', False)


def test_a_job_that_is_known_is_not_sent_again(api: APIClient, job: Job) -> None:
    etag = tag(api, job)
    answer = api.get(f"/api/v1/jobs/{job.pk}/", headers={"If-None-Match": etag})
    assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", etag)
    Job.objects.update(description="other")
    assert api.get(f"/api/v1/jobs/{job.pk}/", headers={"If-None-Match": etag}).status_code == 200


def test_where_nothing_has_a_tag_if_match_is_refused(api: APIClient, job: Job) -> None:
    body = {"name": "another", "pipeline": job.pipeline}
    check_problem(api.post("/api/v1/jobs/", body, headers={"If-Match": '"x"'}), 412, "stale")
    assert Job.objects.count() == 1
