"""What a definer may write into the properties of an Iceberg catalog, under the console."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from runtime.connectors.tables.iceberg import IcebergSink
from runtime.connectors.tables.iceberg_catalog import open_catalog
from runtime.errors import JobRejected, WeirError

SECRET = "hunter2-of-the-shop"
REFERENCE = "${secret:shop-password}"


@pytest.fixture(autouse=True)
def _under_the_console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shop = {"address": "https://good.example.org/catalog", "options": {"token": REFERENCE}}
    monkeypatch.setenv("WEIR_SECRET_SHOP_PASSWORD", SECRET)
    monkeypatch.setenv("WEIR_DATA_HOSTS", "good good.example.org")
    monkeypatch.setenv("WEIR_CONNECTIONS", json.dumps({"shop": shop}))
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()


class Catalog(BaseHTTPRequestHandler):
    """A REST catalog of the definer, which keeps the credentials that arrive."""

    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(str(self.headers.get("Authorization")))
        self.send_error(500)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    Catalog.requests = []
    with HTTPServer(("127.0.0.1", 0), Catalog) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", Catalog.requests
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("prefix", ["http://", " http://", "\thttp://", "http://good@", "http://good:80@", "HTTP://"])
def test_a_server_of_the_definer_receives_no_token(prefix: str, listener: tuple[str, list[str]]) -> None:
    place, requests = listener
    catalog = {"type": "rest", "uri": f"{prefix}{place}", "token": REFERENCE}
    with suppress(WeirError, ValueError, OSError), open_catalog("default", catalog):
        pass
    assert requests == []
    with pytest.raises(JobRejected):
        IcebergSink("ns.rows", catalog).check()


REFUSED = {
    "a space before the address": {"uri": " https://evil/"},
    "a space in the address": {"uri": "https://good/a b"},
    "an address of tokens": {"uri": "https://good", "oauth2-server-uri": " https://evil/"},
    "another host of tokens": {"uri": "https://good", "oauth2-server-uri": "https://evil/"},
    "an object store without a scheme": {"uri": "https://good", "s3.endpoint": "evil:9000"},
    "a proxy": {"uri": "https://good", "s3.proxy-uri": "evil:9000"},
    "code of a catalog": {"py-catalog-impl": "evil.Catalog"},
    "code of files": {"uri": "https://good", "py-io-impl": "evil.FileIO"},
    "a host after a question mark": {"uri": "postgresql+psycopg://good?@evil/db"},
    "a host after a number sign": {"uri": "postgresql+psycopg://good#@evil/db"},
    "a host after a backslash": {"uri": "https://good\\@evil/"},
    "two hosts": {"uri": "postgresql+psycopg://good,evil/db"},
    "a host among the parameters": {"uri": "postgresql+psycopg://good/db?host=evil"},
    "another driver": {"uri": "postgresql+asyncpg://good/db"},
    "another database": {"uri": "mysql://good/db"},
    "one host of several": {"type": "hive", "uri": "thrift://good:9083,thrift://evil:9083"},
    "the host of the environment": {"uri": "postgresql+psycopg:///db"},
    "no address": {"type": "rest"},
    "a store of the cloud": {"type": "glue", "uri": "https://good"},
    "a file elsewhere": {"uri": "sqlite:////etc/catalog.db"},
    "a file by its URI": {"uri": "sqlite:///file:/etc/catalog.db?uri=true"},
    "a bucket": {"uri": "postgresql+psycopg://good/db", "warehouse": "s3://bucket/tables"},
    "a secret in the name of a host": {"uri": f"postgresql+psycopg://{REFERENCE}x/db"},
    "a secret in the name of a database": {"uri": f"postgresql+psycopg://good/{REFERENCE}"},
    "a secret in the path": {"uri": f"https://good/{REFERENCE}"},
    "a secret in another property": {"uri": "https://good", "scope": REFERENCE},
}


@pytest.mark.parametrize("catalog", REFUSED.values(), ids=REFUSED)
def test_other_hosts_files_and_code_are_refused(catalog: dict[str, str]) -> None:
    """Before anything starts, and again when a slot opens the catalog."""
    with pytest.raises(JobRejected) as error:
        IcebergSink("ns.rows", catalog).check()
    assert error.value.field.startswith("catalog")
    with pytest.raises(JobRejected) as error, open_catalog("default", catalog):
        pass
    assert SECRET not in str(error.value)


def test_a_secret_goes_to_no_catalog_without_a_host(tmp_path: Path) -> None:
    catalog = {"uri": f"sqlite:///{tmp_path}/data/catalog.db", "token": REFERENCE}
    with pytest.raises(JobRejected, match=r"catalog\.token: .*names no host"):
        IcebergSink("ns.rows", catalog).check()


def test_a_file_that_is_a_link_out_of_the_roots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "catalog.db").symlink_to(tmp_path / "other.db")
    with (
        pytest.raises(JobRejected, match="WEIR_DATA_ROOTS"),
        open_catalog("default", {"uri": f"sqlite:///{tmp_path}/data/catalog.db"}),
    ):
        pass
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "rest", "uri": "https://good.example.org/catalog", "token": REFERENCE, "warehouse": "prod"},
        {"type": "rest", "uri": "https://good:8443", "credential": REFERENCE, "oauth2-server-uri": "https://good/t"},
        {"uri": f"postgresql+psycopg://app:{REFERENCE}@good:5433/db?sslmode=require", "warehouse": "/data"},
        {"type": "hive", "uri": "thrift://good:9083,thrift://good.example.org:9083", "warehouse": "file:///data"},
        {"uri": REFERENCE, "type": "sql"},
    ],
)
def test_catalogs_on_listed_hosts_are_accepted(catalog: dict[str, str]) -> None:
    IcebergSink("ns.rows", catalog).check()


def test_a_file_below_the_roots_is_opened(tmp_path: Path) -> None:
    with open_catalog("default", {"uri": f"sqlite:///{tmp_path}/data/catalog.db"}) as catalog:
        assert catalog.list_namespaces() == []
