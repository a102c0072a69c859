"""Indexes that migrations build without a lock that stops job masters.

Postgres builds such an index outside a transaction. An interrupted build leaves an invalid index, which no query uses
and each write maintains. The next run of the migration must replace it, and keep the valid indexes of earlier steps.
"""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently


class BuildIndexConcurrently(AddIndexConcurrently):
    """`AddIndexConcurrently` that may be repeated after an interruption. A valid index of this name stays."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        name = schema_editor.quote_name(self.index.name)
        with schema_editor.connection.cursor() as cursor:
            cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name])
            found = cursor.fetchone()
        if found == (True,):
            return
        if found is not None:
            schema_editor.execute(f"DROP INDEX CONCURRENTLY {name}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
