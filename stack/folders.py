"""Where services keep data and sockets, and as whom they run.

Postgres refuses to run as root, so root lends both servers an account without rights. Where that account cannot
reach the wanted folder (a checkout under /root, say), the folder moves to a place of its own and a link stays behind:
permissions of parent folders are never loosened.
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

SOCKET_PATH_BYTES: Final = 107  #: sun_path without its final zero byte
_LONGEST_NAME: Final = ".s.PGSQL.65535"


@dataclass(frozen=True, slots=True)
class Account:
    """The user that services run as; None in its place means: as we are."""

    name: str
    uid: int
    gid: int


def service_account() -> Account | None:
    """`weir` if the administrator made it, else `nobody`; None when we are not root."""
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
    """What makes a child run as `account`."""
    return Identity(user=account.uid, group=account.gid, extra_groups=[]) if account else Identity()


def is_reachable(path: Path, account: Account | None) -> bool:
    """Asks the kernel as that account, so that ACLs and mount options count too."""
    if account is None:
        return True
    asked = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)],
        cwd="/", check=False, **identity(account),
    )  # fmt: skip
    return asked.returncode == 0


def private_folder(wanted: Path, account: Account | None) -> Path:
    """Makes `wanted`, mode 0700, owned by the account. Returns the real folder, which may lie elsewhere."""
    if wanted.is_symlink() and not wanted.exists():
        wanted.unlink()
    if not wanted.exists():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if is_reachable(wanted.parent, account):
            wanted.mkdir(mode=0o700)
        else:
            wanted.symlink_to(_fresh(_durable_base() / _short_name(wanted)))
    real = wanted.resolve()
    if account:
        os.chown(real, account.uid, account.gid)
    real.chmod(0o700)
    return real


def socket_folder(wanted: Path, account: Account | None) -> Path:
    """Like `private_folder`, but short enough for a Unix socket. Contents do not outlive the machine's boot."""
    fits = len(os.fsencode(wanted / _LONGEST_NAME)) <= SOCKET_PATH_BYTES
    if fits and not wanted.is_symlink():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        if is_reachable(wanted.parent, account):
            return private_folder(wanted, account)
    short = _short_base() / _short_name(wanted)
    _own(short, account)
    return short


def remove(folder: Path) -> None:
    """Removes a folder made here, and what its link points to."""
    if folder.is_symlink():
        shutil.rmtree(folder.resolve(), ignore_errors=True)
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def remove_socket_folder(wanted: Path) -> None:
    """Removes what `socket_folder` made for `wanted`, wherever it lies."""
    shutil.rmtree(_short_base() / _short_name(wanted), ignore_errors=True)
    shutil.rmtree(wanted, ignore_errors=True)


def remove_service_folders(var: Path) -> None:
    """Everything that services were given for `var`, also what lies elsewhere."""
    for name in ("pg", "redis", "programs"):
        remove(var / name)
    remove_socket_folder(var / "run/pg")


def _short_name(wanted: Path) -> str:
    """Unique to the user and the full path, so that two checkouts never meet."""
    return f"weir-{os.geteuid()}-{hashlib.sha256(os.fsencode(wanted.absolute())).hexdigest()[:12]}"


def _short_base() -> Path:
    return Path("/run") if os.geteuid() == 0 and os.access("/run", os.W_OK) else Path("/tmp")  # noqa: S108


def _durable_base() -> Path:
    """Only root ever needs it: for anybody else the account is the user."""
    return Path("/var/lib")


def _fresh(folder: Path) -> Path:
    """The link that knew this folder is gone, and with it the checkout's claim on what it held."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def _own(folder: Path, account: Account | None) -> None:
    """Makes or adopts a folder in a place where others may write too."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    owners = {os.geteuid(), account.uid if account else os.geteuid()}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise RuntimeError(f"{folder} belongs to somebody else; remove it")
    if account:
        os.chown(folder, account.uid, account.gid)
    folder.chmod(0o700)
