"""Targets in a bucket of a real S3 server, behind a proxy that refuses and stalls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, ClassVar

import psycopg
import pyarrow.fs as fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import weir
from runtime.access.secrets import resolve
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Target
from tests.iceberg import postgres_catalog_in
from tests.s3 import BUCKET, S3Server
from tests.s3_proxy import Fault, Faults


class BucketTarget(Target):
    """Objects below a prefix of its own."""

    servers: ClassVar[tuple[str, ...]] = ("bucket",)
    obstructions: ClassVar[Mapping[str, str]] = {"unavailable": "status 503|status code: 503|HTTP status 503"}

    def obstructed(self, name: str) -> AbstractContextManager[None]:
        return self._unavailable() if name == "unavailable" else super().obstructed(name)

    def stalled(self) -> AbstractContextManager[None]:
        return self.place.servers["bucket"].stall.closed()

    def delete(self) -> None:
        client = self.server.client()
        for key in self.server.keys(self.prefix):
            client.delete_object(Bucket=BUCKET, Key=key)

    @property
    def prefix(self) -> str:
        return f"{self.place.name}/out"

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def server(self) -> S3Server:
        server: S3Server = self.place.servers["bucket"].controls[0]
        return server

    def uploads(self) -> list[str]:
        """The uploads that have not ended."""
        reply = self.server.client().list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.place.name}/")
        return [upload["Key"] for upload in reply.get("Uploads", ())]

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        faults: Faults = self.place.servers["bucket"].controls[1]
        faults.rule = lambda method, path: Fault.UNAVAILABLE
        try:
            yield
        finally:
            faults.rule = lambda method, path: None


class DeltaBucket(BucketTarget):
    """A partitioned Delta table in a bucket, created by the first commit."""

    on_deletion = "the file to commit is neither pending nor committed"

    def sink(self) -> Sink:
        return weir.DeltaSink(self.uri, partition_by=("day",))

    def ids(self) -> list[int]:
        ids: list[int] = self._table().to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return ids

    def leftovers(self) -> list[str]:
        names = {uri.rpartition("/")[2] for uri in self._table().file_uris()}
        parts = [key.rpartition("/")[2] for key in self.server.keys(f"{self.prefix}/part-")]
        return [*(name for name in parts if name not in names), *self.uploads()]

    def _table(self) -> Any:
        return DeltaTable(self.uri, storage_options={"allow_http": "true"})


class IcebergBucket(BucketTarget):
    """A partitioned Iceberg table in a bucket, with its catalog in Postgres."""

    is_long = True

    servers = ("bucket", "postgres")
    on_deletion = r"Iceberg: .* does not exist|neither pending nor committed"

    def create(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {self.place.name}")

    def sink(self) -> Sink:
        return weir.IcebergSink("shop.rows", self._properties, partition_by=("day",))

    def ids(self) -> list[int]:
        table = self._table()
        ids: list[int] = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        return ids

    def leftovers(self) -> list[str]:
        names = {path.rpartition("/")[2] for path in self._table().inspect.files()["file_path"].to_pylist()}
        parts = [key.rpartition("/")[2] for key in self.server.keys(f"{self.prefix}/shop/rows/data/part-")]
        return [*(name for name in parts if name not in names), *self.uploads()]

    def _table(self) -> Any:
        properties = {name: resolve(name, value, ()) for name, value in self._properties.items()}
        endpoint = self.server.environment["AWS_ENDPOINT_URL"]
        with closing(
            load_catalog("default", **properties, **{"s3.endpoint": endpoint, "s3.region": "us-east-1"})
        ) as iceberg:
            return iceberg.load_table("shop.rows")

    @property
    def _properties(self) -> dict[str, str]:
        catalog = postgres_catalog_in(self._url, self.place.name, self.place.folder)
        return {**catalog, "warehouse": self.uri}

    @property
    def _url(self) -> str:
        return self.place.servers["postgres"].address


class ParquetBucket(BucketTarget):
    """Parquet files in a bucket, in partitions. A deletion of visible files is a consumer's, and harmless."""

    def sink(self) -> Sink:
        return weir.ParquetSink(self.uri, partition_by=("day",))

    def ids(self) -> list[int]:
        keys = [key for key in self.server.keys(f"{self.prefix}/day=") if key.endswith(".parquet")]
        store, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}?endpoint_override=127.0.0.1:{self.server.port}&scheme=http")
        return [
            number
            for key in keys
            for number in pq.read_table(f"{BUCKET}/{key}", columns=["id"], filesystem=store, partitioning=None)[
                "id"
            ].to_pylist()
        ]

    def leftovers(self) -> list[str]:
        return [*self.uploads(), *self.server.keys(f"{self.prefix}/.claims/")]


class JsonLinesBucket(ParquetBucket):
    """Files of rows in a bucket, rolled at each checkpoint and earlier."""

    is_long = True

    obstructions: ClassVar[Mapping[str, str]] = {}  # those of its base
    without: ClassVar[Mapping[str, str]] = {"slow": "its base has it, with the same uploads and committer"}

    def sink(self) -> Sink:
        return weir.JsonLinesSink(self.uri, partition_by=("day",), max_bytes=1_500, roll_on_checkpoint=True)

    def ids(self) -> list[int]:
        client = self.server.client()
        keys = [key for key in self.server.keys(f"{self.prefix}/day=") if key.endswith(".jsonl")]
        contents = (client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys)
        return [json.loads(line)["id"] for content in contents for line in content.splitlines()]
