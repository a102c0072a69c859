"""Output of a batch run in a bucket: tasks of Spark begin uploads, and the job master completes them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from runtime.connectors.bucket import Bucket
from tests.s3 import BUCKET

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
import pyarrow as pa
import weir
from spark_jobs.batch.run import run_batch
from spark_jobs.session import SparkSettings, spark_session

folder, uri = sys.argv[1:]
flow = weir.Dataflow("job")
schema = weir.JsonLinesFormat(pa.schema([("n", pa.int64())]))
rows = flow.source("in", weir.DirectorySource(folder + "/in", schema, bounded=True))
rows.sink("files", weir.ParquetSink(uri + "/files"))
rows.sink("table", weir.DeltaSink(uri + "/table"))
with spark_session(SparkSettings(app_name="batch", master="local[2]", scratch_dir=folder + "/scratch")) as spark:
    print(run_batch(flow, parallelism=2, spark=spark, storage=uri + "/state").rows)
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_batch_run_writes_files_and_a_table_into_a_bucket(bucket_uri: str, tmp_path: Path) -> None:
    """The program sets the environment of its tasks: those of a cluster have the environment of their hosts."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        lines = (json.dumps({"n": number * 100 + each}) for each in range(100))
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "WEIR_DATA_ROOTS": str(tmp_path),
        "WEIR_DATA_URLS": f"s3://{BUCKET}",
    }
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), bucket_uri]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "{'files': 400, 'table': 400}" in result.stdout, result.stderr[-3_000:]
    files = Bucket(f"{bucket_uri}/files")
    tables = [pq.read_table(pa.BufferReader(files.read(name))) for name in files.names("part-")]
    tables.append(DeltaTable(f"{bucket_uri}/table", storage_options={"allow_http": "true"}).to_pyarrow_table())
    assert sorted(pa.concat_tables(tables)["n"].to_pylist()) == sorted([*range(400)] * 2)
    assert [*files.uploads(), *files.names(".claims/")] == []
