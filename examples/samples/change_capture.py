"""Accounts of the example `change_capture`, which clients insert, update and delete.

A trigger of Postgres writes each change to the table `audit`, in the same transaction. The check compares the captured
history with it.
"""

from pathlib import Path
from random import Random
from typing import Final

import psycopg
import pyarrow as pa

from examples.samples.check import committed_table, postgres_table

STEPS: Final = 12
_ACCOUNTS: Final = pa.schema(
    [("id", pa.int64()), ("owner", pa.string()), ("balance", pa.int64()), ("version", pa.int64())]
)
_CHANGES: Final = pa.schema([*_ACCOUNTS, ("op", pa.string())])
_INITIAL: Final = 1_000  #: accounts that `_TABLES` inserts
_TRANSACTIONS_PER_STEP: Final = 20
_TABLES: Final = """
CREATE SCHEMA change_capture;
CREATE TABLE change_capture.accounts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text, balance bigint, version bigint DEFAULT 0
);
CREATE TABLE change_capture.accounts_copy (id bigint PRIMARY KEY, owner text, balance bigint, version bigint);
CREATE TABLE change_capture.audit (id bigint, owner text, balance bigint, version bigint, op text);
CREATE FUNCTION change_capture.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tg_op = 'DELETE' THEN
        INSERT INTO change_capture.audit VALUES (old.id, NULL, NULL, old.version + 1, 'delete');
    ELSE
        INSERT INTO change_capture.audit VALUES (
            new.id, new.owner, new.balance, new.version,
            CASE tg_op WHEN 'INSERT' THEN 'insert' ELSE 'update_after' END
        );
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON change_capture.accounts
    FOR EACH ROW EXECUTE FUNCTION change_capture.note();
INSERT INTO change_capture.accounts (owner, balance)
    SELECT 'Owner ' || n, 100 * n FROM generate_series(1, 1000) n;
CREATE PUBLICATION accounts FOR TABLE change_capture.accounts;
"""
_INSERT: Final = """
INSERT INTO change_capture.accounts (owner, balance) SELECT 'New ' || n, n FROM generate_series(1, 5) n
"""
_UPDATE: Final = """
UPDATE change_capture.accounts SET balance = balance + %s, version = version + 1 WHERE id = ANY(%s)
"""
_DELETE: Final = "DELETE FROM change_capture.accounts WHERE id = ANY(%s)"
_SLOT: Final = "SELECT pg_create_logical_replication_slot('accounts', 'pgoutput')"


def prepare(folder: Path, database: str) -> None:
    """Creates the tables with the initial rows, the publication and the slot, unless they exist."""
    with psycopg.connect(database, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'change_capture'").fetchone():
            with connection.transaction():
                connection.execute(_TABLES)
        if not connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'accounts'").fetchone():
            connection.execute(_SLOT)


def write_step(folder: Path, database: str, step: int) -> None:
    """Inserts, updates and deletes accounts in some transactions. A repetition makes further changes."""
    random = Random(step)  # noqa: S311 - sample data
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(_TRANSACTIONS_PER_STEP):
            ids = [random.randrange(1, _INITIAL + 100 * step + 1) for _ in range(12)]
            with connection.transaction():
                connection.execute(_INSERT)
                connection.execute(_UPDATE, [random.randrange(-50, 50), ids])
                connection.execute(_DELETE, [ids[:2]])


def tables(folder: Path, database: str) -> dict[str, pa.Table]:
    """Source, output and audit of the example, for `change_capture.sql`."""
    return {
        "accounts": postgres_table(database, "change_capture.accounts", _ACCOUNTS),
        "accounts_copy": postgres_table(database, "change_capture.accounts_copy", _ACCOUNTS),
        "audit": postgres_table(database, "change_capture.audit", _CHANGES),
        "history": committed_table(folder / "history", _CHANGES),
    }
