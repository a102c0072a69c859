"""Folders for data and sockets of Postgres and Redis, and the account that runs these servers.

Postgres refuses to run as root, so under root both servers run as an unprivileged account. If that account cannot reach
the wanted folder (for example in a checkout under /root), the folder is created elsewhere and linked. Permissions of
parent folders are never loosened.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

SOCKET_PATH_BYTES: Final = 107  #: size of sun_path without its final zero byte
_LONGEST_SOCKET_NAME: Final = ".s.PGSQL.65535"


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs the services. Functions accept None for the current user."""

    name: str
    uid: int
    gid: int


def service_account() -> Account | None:
    """`weir` if this account exists, else `nobody`; None if the current user is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("weir", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise RuntimeError("Postgres does not run as root, and this machine has no account `weir` or `nobody`")


class Identity(TypedDict, total=False):
    """Keyword arguments of `subprocess`."""

    user: int
    group: int
    extra_groups: list[int]


def identity(account: Account | None) -> Identity:
    """The arguments of `subprocess` that run a child as `account`."""
    return Identity(user=account.uid, group=account.gid, extra_groups=[]) if account else Identity()


def is_reachable(path: Path, account: Account | None) -> bool:
    """Whether the account can reach `path`. A child of the account checks it, so that ACLs and mount options count."""
    if account is None:
        return True
    process = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)],
        cwd="/", check=False, **identity(account),
    )  # fmt: skip
    return process.returncode == 0


def private_folder(path: Path, account: Account | None) -> Path:
    """Creates `path`, with mode 0700 and owned by the account. Returns the real folder, the target of any link."""
    if path.is_symlink() and not path.exists():
        path.unlink()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_reachable(path.parent, account):
            path.mkdir(mode=0o700)
        else:
            path.symlink_to(_create_empty(_durable_base() / short_name(path)))
    real = path.resolve()
    if account:
        os.chown(real, account.uid, account.gid)
    real.chmod(0o700)
    return real


def socket_folder(path: Path, account: Account | None, base: Path | None = None) -> Path:
    """Like `private_folder`, but with a path short enough for a Unix socket. The contents are lost at a reboot.

    Args:
        base: parent of the short folder; None: the machine's folder for runtime data.
    """
    fits = len(os.fsencode(path / _LONGEST_SOCKET_NAME)) <= SOCKET_PATH_BYTES
    if fits and not path.is_symlink():
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_reachable(path.parent, account):
            return private_folder(path, account)
    short = (base or _short_base()) / short_name(path)
    _take_over(short, account)
    return short


def write_private(path: Path, text: str, account: Account | None = None) -> None:
    """Writes a file that only its owner may read; the account becomes its owner."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as sink:
        sink.write(text)
    if account:
        os.chown(path, account.uid, account.gid)


def remove(folder: Path) -> None:
    """Removes a folder that `private_folder` created, including the target of its link."""
    if folder.is_symlink():
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def remove_socket_folder(path: Path) -> None:
    shutil.rmtree(_short_base() / short_name(path), ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def remove_service_folders(var: Path) -> None:
    for name in ("pg", "redis", "programs"):
        remove(var / name)
    remove_socket_folder(var / "run/pg")


def short_name(path: Path) -> str:
    """A name that is unique to the user and the full path, so that checkouts never share a folder."""
    return f"weir-{os.geteuid()}-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:12]}"


def _short_base() -> Path:
    return Path("/run") if os.geteuid() == 0 and os.access("/run", os.W_OK) else Path("/tmp")  # noqa: S108


def _durable_base() -> Path:
    """The parent of relocated folders. Only root needs it: other users run the services themselves."""
    return Path("/var/lib")


def _create_empty(folder: Path) -> Path:
    """Creates `folder` empty. Old contents are obsolete, because the link to them is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def _take_over(folder: Path, account: Account | None) -> None:
    """Creates or takes over a folder whose parent others can write to. Raises RuntimeError for a foreign owner."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    owners = {os.geteuid(), account.uid if account else os.geteuid()}
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        raise RuntimeError(f"{folder} belongs to another user: remove it")
    if account:
        os.chown(folder, account.uid, account.gid)
    folder.chmod(0o700)
