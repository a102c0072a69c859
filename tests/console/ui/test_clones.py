"""The page that restores a snapshot beside its job, and the evidence on the page of the snapshot."""

import pytest
from django.test import Client
from playwright.sync_api import expect

from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import Open


def test_a_clone_is_offered_while_the_job_runs(at_console: Client) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    assert (
        f'href="/checkpoints/{checkpoint.pk}/clone/"'
        in at_console.get(f"/checkpoints/{checkpoint.pk}/").content.decode()
    )
    assert (
        f'href="/checkpoints/{checkpoint.pk}/clone/"'
        in at_console.get(f"/jobs/{checkpoint.job_id}/restore/").content.decode()
    )
    page = at_console.get(f"/checkpoints/{checkpoint.pk}/clone/")
    assert 'hx-params="not reason"' in page.content.decode(), "addresses are logged, and the commands have no reason"
    said = blocks.text(page)
    assert "The sinks of the new job discard every row, and their state is left out." in said
    form = {"kind": "clone", "version": checkpoint.run.version_id, "parallelism": 2, "name": "flights-delays"}
    assert "another job is called" in blocks.text(at_console.post(f"/checkpoints/{checkpoint.pk}/clone/", form))
    at_console.post(f"/checkpoints/{checkpoint.pk}/clone/", {**form, "name": ""})
    clone = Job.objects.get(discards_output=True)
    assert clone.name == "flights-delays, clone 1"
    assert "Output discarded: a clone of this snapshot" in blocks.text(at_console.get(f"/jobs/{clone.pk}/"))


def test_a_drill_is_evidence_on_the_page_of_its_snapshot(at_console: Client) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    path = f"/checkpoints/{checkpoint.pk}/"
    form = {"kind": "drill", "version": checkpoint.run.version_id, "parallelism": 1, "name": ""}
    assert at_console.post(f"{path}clone/", form).headers["Location"] == path
    assert "waiting for a worker" in blocks.text(at_console.get(path))
    assert at_console.get(path, headers={"HX-Request": "true"}).status_code == 200, "it is watched until it ends"
    measured = {"restored_bytes": 2**20, "start_ms": 900, "first_record_ms": 8_000, "first_checkpoint_ms": 11_400}
    Operation.objects.filter(kind="drill").update(state="succeeded", phase="", result=measured)
    said = blocks.text(at_console.get(path))
    assert "operator Succeeded 1.0 MiB 0.90 s 8.0 s 11 s" in said
    assert at_console.get(path, headers={"HX-Request": "true"}).status_code == 200


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_the_commands_follow_the_form(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/checkpoints/{running.checkpoints.get(number=210).pk}/clone/")
        commands = page.locator("#commands")
        expect(commands).not_to_contain_text("--allow-unmapped")
        page.get_by_label("Drop the state of operators that the version lacks").check()
        expect(commands).to_contain_text("--allow-unmapped")
        page.get_by_label("Parallelism").fill("1")
        page.keyboard.press("Tab")
        expect(commands).to_contain_text("--parallelism 1 --allow-unmapped")


@pytest.mark.parametrize("place", ["/jobs/{job}/rescale/", "/checkpoints/{checkpoint}/clone/"])
def test_the_highest_parallelism_is_that_of_the_chosen_version(at_console: Client, place: str) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    narrow = JobVersion.objects.get()
    narrow.pk, narrow.number, narrow.max_parallelism = None, 2, 3
    narrow.save()
    path = place.format(job=checkpoint.job_id, checkpoint=checkpoint.pk)
    page = at_console.get(path).content.decode()
    assert 'hx-target="#parallelism-field"' in page
    script = {"HX-Request": "true", "HX-Target": "parallelism-field"}
    for version, limit in ((checkpoint.run.version, 128), (narrow, 3)):
        field = at_console.get(path, {"version": version.pk, "parallelism": 4}, headers=script).content.decode()
        assert f'max="{limit}" value="4"' in field
        assert f"{limit} at most" in field
        assert "<select" not in field
    refused = at_console.post(path, {"kind": "clone", "version": narrow.pk, "parallelism": 4})
    assert "must lie between 1 and max_parallelism (3), not 4" in blocks.text(refused)
    assert 'max="3" value="4"' in refused.content.decode()
