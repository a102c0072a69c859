"""`${secret:NAME}` in options of connectors: resolved where a connection is made, refused where a value stands."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from runtime.access.redaction import redact, redact_failure, redact_json
from runtime.access.secrets import check_references, register_references, resolve, resolved_texts
from runtime.errors import JobRejected

URL = "postgresql://app:${secret:orders-password}@db/orders"


def test_a_reference_takes_the_environment_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "p@ss")
    check_references("url", URL)
    assert resolve("url", URL, ()) == "postgresql://app:p@ss@db/orders"
    assert resolve("url", "no reference", ()) == "no reference"


def test_else_the_file_of_its_name_without_the_last_newline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRETS", str(tmp_path))
    (tmp_path / "orders-password").write_text("from a file\n")
    assert resolve("url", URL, ()) == "postgresql://app:from a file@db/orders"


def test_a_secret_that_is_not_set_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRETS", str(tmp_path))
    with pytest.raises(JobRejected, match=r"url: the secret 'orders-password' is not set.*WEIR_SECRET_ORDERS_PASSWORD"):
        resolve("url", URL, ())


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRETS", str(tmp_path))
    (tmp_path / "orders-password").mkdir()
    with pytest.raises(JobRejected, match="cannot be read"):
        resolve("url", URL, ())


@pytest.mark.parametrize("name", ["", "../etc/passwd", "a b", "9"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(JobRejected, match="is no reference"):
        check_references("url", f"postgresql://${{secret:{name}}}@db/orders")


@pytest.mark.parametrize(
    "text", ["postgresql://app:hunter2@db/orders", "host=db password=hunter2", "host=db PASSWORD = 'hunter 2'"]
)
def test_a_password_in_the_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(JobRejected, match="contains a password") as caught:
        check_references("url", text)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("text", ["postgresql://app@db/orders", "host=db user=app", "host=db password=${secret:p}"])
def test_a_text_without_a_password_is_accepted(text: str) -> None:
    check_references("url", text)


def test_a_resolved_value_is_masked_in_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """An author's client quotes the address; the parameters hold the reference only."""
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", 'p/ss "word"')
    assert "p/ss" in redact('no way to app:p/ss "word"@db')
    resolve("url", URL, (), encode=lambda secret: quote(secret, safe=""))
    assert redact('no way to app:p/ss "word"@db') == "no way to app:********@db"
    assert redact("no way to app:p%2Fss%20%22word%22@db") == "no way to app:********@db"
    assert redact_json({"error": ['{"given": "p/ss \\"word\\""}']}) == {"error": ['{"given": "********"}']}


def test_the_password_of_a_resolved_address_is_masked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_DATABASE", "postgresql://app:pa%2Fss@db/orders")
    resolve("url", "${secret:database}", ())
    assert redact("cannot log in with pa/ss, pa%2Fss") == "cannot log in with ********, ********"
    assert redact("at postgresql://app:pa%2Fss@db/orders") == "at ********"


def test_a_short_value_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "a")
    resolve("url", URL, ())
    assert redact("a table") == "a table"


def test_a_resolved_word_is_masked_alone_and_not_within_longer_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """User names and names of buckets are references, too."""
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "order")
    resolve("url", URL, ())
    assert redact("the user order is no owner of 'order'") == "the user ******** is no owner of '********'"
    for text in ("a reordered partition", "/data/orders/12/savepoint-3", "order_payments", "2order"):
        assert redact(text) == text


@pytest.mark.parametrize("before", ["\n", "\t", "\x1b", "é", "@", "'"])
def test_an_escape_before_a_resolved_value_is_no_part_of_a_word(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An escape ends with a letter or a digit in JSON, in the representation of a text and in an address."""
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "hunter2")
    resolve("url", URL, ())
    text = f"{before}hunter2{before}"
    for written in (json.dumps(text), ascii(text), repr(text.encode()), quote(text, safe="")):
        assert "hunter2" not in redact(written)


def test_references_of_parameters_are_masked_before_this_process_resolves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "correct horse")
    register_references({"nested": [{"url": URL}], "absent": "${secret:not-here}"})
    assert redact("app:correct horse@db") == "app:********@db"


def test_a_process_of_many_jobs_masks_the_secrets_of_a_job_in_its_texts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user name of one job was masked in the stored failures of all jobs of a worker."""
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "orders")
    resolved = resolved_texts({"nested": [{"url": URL}], "absent": "${secret:not-here}"})
    assert redact("no table orders", resolved=resolved) == "no table ********"
    assert redact("no table orders") == "no table orders"


def test_a_failure_keeps_its_code_operator_and_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "orders")
    register_references({"url": URL})
    facts = {"code": "orders", "operator": "orders", "slot": 1}
    failure = {**facts, "message": "orders: KeyError", "detail": {**facts, "log": ["orders"]}}
    assert redact_failure(failure, redact_json) == {
        **facts, "message": "********: KeyError", "detail": {**facts, "log": ["********"]}
    }  # fmt: skip


def test_a_long_value_is_masked_within_words_and_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A definer appends a letter to the reference, or writes it as a host, which clients print in lower case."""
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "Hunter2-of-the-shop")
    resolve("url", URL, ())
    text = 'database "Hunter2-of-the-shopx", host xhunter2-of-the-shop.example.org, HUNTER2-OF-THE-SHOP_1'
    assert redact(text) == 'database "********x", host x********.example.org, ********_1'
