"""The cluster: Celery workers, waiting runs, places for runs, and packages; and the API tokens of a user."""

from typing import Final

from console.ui.tables.table import Column, Table

_CELLS: Final = "_cluster_cells.html"

WORKERS: Final = Table(
    name="workers",
    row="worker",
    cells=_CELLS,
    caption="Celery workers by name",
    region="Celery workers",
    columns=(
        Column("name", "Worker", style="anywhere mono"),
        Column("queues", "Queues", 'join:", "'),
        Column("busy", "State", "#busy"),
        Column("places", "Places", number=True),
        Column("free", "Free", number=True),
    ),
)

QUEUE: Final = Table(
    name="queue",
    row="run",
    cells=_CELLS,
    caption="Waiting runs, oldest first",
    region="Waiting runs",
    empty='<p class="empty">No run waits.</p>',
    columns=(
        Column("job", "Job", "#queued_job", style="anywhere"),
        Column("pk", "Run", "#queued_run", number=True),
        Column(
            "state",
            "Waits for",
            '{% if value == "queued" %}a worker of the queue <code>runs</code>{% else %}slots{% endif %}',
        ),
        Column("parallelism", "Slots", number=True),
        Column("created_at", "Since", "{% ago value %}"),
    ),
)

PLACES: Final = Table(
    name="places",
    row="place, health",
    cells=_CELLS,
    caption="Runs and their supervisors, newest first",
    region="Places for runs",
    empty='<p class="empty">No worker supervises a run.</p>',
    columns=(
        Column("job", "Job", "#job", style="anywhere"),
        Column("run.pk", "Run", "#run", number=True),
        Column("run.state", "State", '{% state "run" value health=health %}'),
        Column("supervisor", "Supervisor", "#supervisor", style="mono"),
        Column("slots", "Slots", "{{ value }} of {{ place.run.parallelism }}", number=True),
        Column("live.spark_ui", "Spark", "#spark_ui"),
        Column("run.live_at", "Seen", "{% ago value watched=True %}"),
    ),
)

PACKAGES: Final = Table(
    name="packages",
    row="package",
    cells="packages/_cells.html",
    caption="Packages, newest first",
    region="Packages",
    style="stacked",
    empty='<p class="empty"><strong>No package is stored.</strong></p>',
    columns=(
        Column("digest", "Package", "#digest", style="mono"),
        Column("pipelines", "Pipelines", 'join:", "|default:"–"', style="anywhere"),
        Column("state", "State", "#state", style="wrap"),
        Column("size", "Size", "size", number=True),
        Column("versions", "Versions", "exact", number=True),
        Column("created_at", "Uploaded", "#created"),
        Column("used_at", "Last upload or version", "{% ago value %}"),
    ),
)

PACKAGE_VERSIONS: Final = Table(
    name="package_versions",
    row="version",
    cells="packages/_cells.html",
    caption="Versions that name the package, newest first",
    region="Versions that name the package",
    empty='<p class="empty">No version names the package.</p>',
    columns=(
        Column("job.name", "Job", "#job", style="anywhere"),
        Column("number", "Version", "#number", number=True),
        Column("state", "State", '{% state "version" value %}'),
        Column("message", "Message", style="wrap"),
        Column("created_at", "Created", "#version_created"),
    ),
)

TOKENS: Final = Table(
    name="tokens",
    row="token",
    cells=_CELLS,
    caption="Tokens, newest first",
    region="Table of tokens",
    empty='<p class="empty">You have no token.</p>',
    columns=(
        Column("token", "Token", "{{ token }}", style="mono"),
        Column("scopes", "Scopes", "read{% for scope in value %}, {{ scope }}{% endfor %}"),
        Column("created_at", "Created", "{% ago value %}"),
        Column("used_at", "Last use", "{% ago value %}"),
        Column("expires_at", "Expires", "#expiry"),
        Column("acts", "Acts", "#revoke", header='<span class="visually-hidden">Acts</span>'),
    ),
)
