"""`${secret:NAME}` in options of connectors: resolved where a connection is made, refused where a value stands."""

from pathlib import Path

import pytest

from runtime.errors import JobRejected
from runtime.secrets import check_references, resolve

URL = "postgresql://app:${secret:orders-password}@db/orders"


def test_a_reference_takes_the_environment_variable_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_ORDERS_PASSWORD", "p@ss")
    check_references("url", URL)
    assert resolve("url", URL) == "postgresql://app:p@ss@db/orders"
    assert resolve("url", "no reference") == "no reference"


def test_else_the_file_of_its_name_without_the_last_newline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRETS", str(tmp_path))
    (tmp_path / "orders-password").write_text("from a file\n")
    assert resolve("url", URL) == "postgresql://app:from a file@db/orders"


def test_a_secret_that_is_not_set_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRETS", str(tmp_path))
    with pytest.raises(JobRejected, match=r"url: the secret 'orders-password' is not set.*WEIR_SECRET_ORDERS_PASSWORD"):
        resolve("url", URL)


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRETS", str(tmp_path))
    (tmp_path / "orders-password").mkdir()
    with pytest.raises(JobRejected, match="cannot be read"):
        resolve("url", URL)


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
