"""Each sentence of docs/security.md that claims a protection has a test; its list of Spark settings is complete."""

import re
from pathlib import Path
from typing import Final

import pytest

from runtime.access.spark_settings import VALUES

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = (ROOT / "docs/security.md").read_text()
#: First words of a sentence -> the test that shows it.
TESTS: Final = {
    "Pages and the API answer": "console/api/test_api.py::test_nobody_reads_without_a_login",
    "A user without permissions": "console/api/test_api.py::test_a_viewer_changes_nothing",
    "The permission `jobs.add_job`": "console/accounts/test_permissions.py::test_a_definer_operates_nothing",
    "The permission `operations.add_operation`": (
        "console/operations/test_kinds.py::test_it_needs_the_permission_and_the_scope_of_its_right"
    ),
    "The permission `jobs.add_package`": (
        "console/api/test_package_requests.py::test_a_definer_without_the_permission_uploads_nothing"
    ),
    "Only packages of the same distribution": (
        "console/api/test_package_requests.py::test_another_distribution_does_not_take_over_the_name_of_a_pipeline"
    ),
    "The size of a package": "io/test_package_archive.py::test_a_bomb_is_refused_before_it_is_unpacked",
    "The permission `jobs.delete_package`": (
        "console/housekeeping/test_packages.py::"
        "test_a_deletion_by_hand_needs_its_permission_and_is_in_the_history_of_the_admin"
    ),
    "An uploaded package": "io/test_package_archive.py::test_an_entry_that_no_package_has_is_refused",
    "A damaged package": "io/test_package_cache.py::test_another_package_under_the_digest_is_refused_by_name",
    "Only a user of the admin": "console/jobs/test_connections.py::test_a_definer_makes_no_connection",
    "A token does what both": "console/api/test_scopes.py::test_a_scope_gives_no_permission",
    "A token has no scope": "console/accounts/test_credentials.py::test_a_token_has_no_scope_unless_it_is_chosen",
    "A token ends": "console/accounts/test_credentials.py::test_the_tokens_of_a_user_end_when_the_password_changes",
    "A token expires": "console/accounts/test_tokens.py::test_a_token_expires_by_default",
    "A password similar": "console/accounts/test_credentials.py::test_a_password_like_the_name_of_its_user_is_refused",
    "After 30 sign-ins": "console/api/test_api.py::test_guessing_passwords_is_slowed_down",
    "An account of single sign-on is known": (
        "console/ui/test_single_sign_on.py::test_no_name_and_no_address_takes_over_an_account"
    ),
    "A person without a group": (
        "console/ui/test_single_sign_on.py::test_a_stranger_without_a_group_of_the_console_gets_no_account"
    ),
    "At a sign-on without a group": (
        "console/ui/test_single_sign_on.py::test_a_user_without_a_group_is_refused_and_has_neither_token_nor_session"
    ),
    "A token of an account of": "console/ui/test_single_sign_on.py::test_tokens_end_with_the_last_sign_on",
    "An account of single sign-on has no password": (
        "console/ui/test_single_sign_on.py::test_no_name_and_no_address_takes_over_an_account"
    ),
    "A job reads and writes": "contracts/test_data_roots.py::test_folders_of_weir_are_refused_below_any_root",
    "A folder that becomes a link": (
        "contracts/test_swapped_folders.py::test_an_output_folder_that_becomes_a_link_is_not_written"
    ),
    "A job reads object stores": "connectors/sources/test_remote_folder.py::test_urls_lie_below_the_allowed_urls",
    "Sinks write to object stores": (
        "connectors/sinks/test_bucket_output.py::test_a_place_that_is_taken_off_the_list_is_not_written"
    ),
    "A job connects to hosts": "contracts/test_data_hosts.py::test_a_job_reaches_listed_hosts_only",
    "A secret goes to the hosts": "contracts/test_data_hosts.py::test_a_listener_of_the_definer_receives_no_secret",
    "A process has the connections": (
        "console/jobs/test_child_environment.py::test_a_process_has_the_connections_of_its_pipeline_alone"
    ),
    "Parameters of libpq": "contracts/test_data_hosts.py::test_parameters_of_libpq_come_from_a_list",
    "Properties of Iceberg": ("connectors/tables/test_iceberg_catalog.py::test_other_hosts_files_and_code_are_refused"),
    "A secret of 8": "access/test_secrets.py::test_a_long_value_is_masked_within_words_and_in_any_case",
    "Options of librdkafka": "contracts/test_data_hosts.py::test_options_of_librdkafka_come_from_a_list",
    "A version chooses Spark settings": (
        "launch/test_context_settings.py::test_a_stored_version_runs_no_command_by_its_settings"
    ),
    "Stages and job masters": "console/jobs/test_child_environment.py::test_a_stage_is_given_none_of_our_secrets",
    "A job master has the address": (
        "console/runs/test_master_environment.py::test_code_of_an_author_finds_none_of_the_secrets_of_a_job_master"
    ),
    "Postgres and Redis": "stack/test_services.py::test_strangers_are_refused",
    "The role of the console": "stack/test_services.py::test_the_role_of_the_console_is_no_superuser",
    "Slots and job master refuse": "contracts/test_control.py::test_strangers_are_refused_and_told",
    "The ports of a local Spark": (
        "launch/test_context_settings.py::test_the_ports_of_a_local_spark_ask_for_a_secret_of_this_run"
    ),
    "A savepoint from another folder": (
        "core/snapshot/test_manifest_codec.py::test_a_manifest_that_somebody_else_sealed_is_refused"
    ),
    "Pages load nothing": "console/ui/test_pages.py::test_every_page_carries_a_strict_policy_and_a_request_id",
    "No page, answer or document": "console/jobs/test_masking.py::test_no_answer_page_or_admin_shows_a_secret",
    "A client that sends or reads": (
        "console/test_server.py::test_clients_that_do_not_read_their_answers_hold_no_thread"
    ),
    "A request that is not complete": (
        "console/test_server.py::test_requests_that_arrive_byte_by_byte_hold_no_thread_and_are_cut_off"
    ),
    "A client that may not upload": (
        "console/test_server.py::test_a_client_that_may_not_upload_is_answered_by_its_head_and_takes_no_place"
    ),
    "At most 8 packages": "console/test_server.py::test_uploads_of_a_user_and_of_all_are_limited",
    "The upload of a package": (
        "console/test_server.py::test_an_upload_has_time_for_its_bytes_and_is_cut_off_where_they_come_too_slowly"
    ),
    "A package of more than 64 MiB": "console/test_server.py::test_the_body_of_a_package_has_a_limit_of_its_own",
    "A user has": "console/api/test_api.py::test_a_user_has_a_number_of_requests_a_minute",
    "A request body": "console/test_server.py::test_a_body_without_announcement_is_cut_off_where_it_grows_too_large",
    "The web server has at most": "console/test_server.py::test_threads_keep_their_connections_to_postgres",
    "Failures do not quote": "slot/test_slot.py::test_a_failure_does_not_quote_a_secret_that_the_slot_has_resolved",
    "Logs mask": ("console/ui/test_runlog.py::test_a_log_masks_the_secrets_of_every_connection_of_the_pipeline"),
    "Channels of alerts": "console/alerts/test_models.py::test_no_page_and_no_error_shows_a_secret",
    "Values of Spark settings": "console/jobs/test_masked_settings.py::test_no_page_and_no_answer_shows_them",
}


def test_each_sentence_has_a_test_and_each_test_a_sentence() -> None:
    sentences = re.findall(r"(?m)^- (.+)$", PAGE)
    matches = [[words for words in TESTS if sentence.startswith(words)] for sentence in sentences]
    assert [sentence for sentence, prefixes in zip(sentences, matches, strict=True) if len(prefixes) != 1] == []
    assert {words for prefixes in matches for words in prefixes} == set(TESTS)


@pytest.mark.parametrize("test", TESTS.values())
def test_the_test_is_there(test: str) -> None:
    path, name = test.split("::")
    assert re.search(rf"(?m)^def {name}\(", (ROOT / "tests" / path).read_text())


def test_the_list_of_spark_settings_is_that_of_the_code() -> None:
    rows = re.findall(r"(?m)^\| .* \| (`spark.*) \|$", PAGE)
    assert sorted(name for row in rows for name in re.findall(r"`(spark[^`]*)`", row)) == sorted(VALUES)
