"""Folders for data and sockets: too long a path, a place out of reach, somebody else's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import folders
from stack.folders import (
    SOCKET_PATH_BYTES,
    private_folder,
    remove,
    remove_socket_folder,
    service_account,
    socket_folder,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends services another account")


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A path on which no Unix socket can be bound."""
    folder = tmp_path / ("a-long-name-" * 12) / "run"
    yield folder
    remove_socket_folder(folder)


def test_a_short_path_keeps_its_sockets(weir_var: Path) -> None:
    path = weir_var / "s"
    folder = socket_folder(path, service_account())
    assert folder == path
    assert folder.stat().st_mode & 0o777 == 0o700
    remove(path)


def test_a_long_path_gets_a_short_runtime_folder(deep: Path) -> None:
    folder = socket_folder(deep, service_account())

    assert len(os.fsencode(folder / ".s.PGSQL.65535")) <= SOCKET_PATH_BYTES
    assert folder.stat().st_mode & 0o777 == 0o700
    assert socket_folder(deep, service_account()) == folder
    remove_socket_folder(deep)
    assert not folder.exists()


def test_two_checkouts_never_share_a_runtime_folder(deep: Path) -> None:
    other = deep.parent / "run-of-another"
    try:
        assert socket_folder(deep, service_account()) != socket_folder(other, service_account())
    finally:
        remove_socket_folder(other)


def test_a_runtime_folder_of_somebody_else_is_refused(deep: Path, tmp_path: Path) -> None:
    """In /tmp anybody may have made it first, or put a link there."""
    (tmp_path / folders.short_name(deep)).symlink_to(tmp_path)

    with pytest.raises(RuntimeError, match="belongs to another user"):
        socket_folder(deep, service_account(), base=tmp_path)


@as_root
def test_data_moves_out_of_a_checkout_that_the_account_cannot_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    account = service_account()
    assert account is not None

    data = private_folder(closed / "var/pg", account)
    try:
        assert (closed / "var/pg").is_symlink()
        assert data.stat().st_uid == account.uid
        assert folders.is_reachable(data, account)
        assert private_folder(closed / "var/pg", account) == data
        assert closed.stat().st_mode & 0o777 == 0o700, "permissions of parents are never loosened"
    finally:
        remove(closed / "var/pg")
    assert not data.exists()


@as_root
def test_an_emptied_var_does_not_find_its_old_data_again(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    account = service_account()
    data = private_folder(closed / "pg", account)
    (data / "old").touch()
    (closed / "pg").unlink()

    try:
        assert list(private_folder(closed / "pg", account).iterdir()) == []
    finally:
        remove(closed / "pg")
