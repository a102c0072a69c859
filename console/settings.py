"""Settings of the console, all from the environment.

A missing or malformed variable ends the process with an error that names it. SQLite and an in-memory broker are not
supported: the code relies on compare-and-set updates, partial indexes and triggers of Postgres.
"""

import hashlib
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from celery.schedules import schedule
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from kombu import Exchange, Queue
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from runtime.access.spark_settings import REMOTE_VARIABLE, SETTINGS_VARIABLE, set_added_settings, set_slot_server
from runtime.core.snapshot.manifest_codec import parse_keys
from runtime.errors import JobRejected
from runtime.io.package_cache import DEFAULT_DAYS
from runtime.io.store import is_absolute, storage_uri
from runtime.keepalive import CLIENT_KEEPALIVES
from runtime.libraries import DISTRIBUTION

# ---------------------------------------------------------------- environment readers


def require(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ImproperlyConfigured(f"{name} is not set; `weir stack up` writes every variable to var/run/env")
    return value


def optional(name: str, default: str) -> str:
    return os.environ.get(name) or default


def flag(name: str) -> bool:
    value = os.environ.get(name, "").lower()
    if value not in {"", "0", "1", "false", "true"}:
        raise ImproperlyConfigured(f"{name} must be 0 or 1, not {value!r}")
    return value in {"1", "true"}


def count(name: str) -> int:
    value = os.environ.get(name) or "0"
    if not (value.isascii() and value.isdigit()):
        raise ImproperlyConfigured(f"{name} must be a whole number from 0 on, not {value!r}")
    return int(value)


def names(name: str, default: str) -> list[str]:
    return [part.strip() for part in optional(name, default).split(",") if part.strip()]


def issuer(name: str) -> str:
    """The address of an OpenID provider. Its answers decide who signs in, so other hosts need TLS."""
    url = optional(name, "")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} is no URL: {error}") from error
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1")
    if url and not (parts.hostname and (parts.scheme == "https" or is_local)):
        raise ImproperlyConfigured(f"{name} must begin with https://, not {url!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ImproperlyConfigured(f"{name} must have neither user, query nor fragment")
    return url


def postgres(name: str) -> dict[str, Any]:
    """Django's settings for a libpq URL, over TCP or a unix socket (`postgresql://user@/db?host=/folder`)."""
    url = require(name)
    if not url.startswith(("postgresql://", "postgres://")):
        raise ImproperlyConfigured(f"{name} must begin with postgresql://; there is no other database mode")
    try:
        parts = {key: str(value) for key, value in conninfo_to_dict(url).items()}
    except ProgrammingError as error:
        raise ImproperlyConfigured(f"{name} is not a Postgres URL: {error}".strip()) from error
    if not parts.get("dbname"):
        raise ImproperlyConfigured(f"{name} names no database")
    keywords = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    address = {key: parts.pop(part, "") for key, part in keywords.items()}
    # A supervisor cannot watch its child while a query hangs, so an unreachable server must fail within seconds.
    limits = {"connect_timeout": 3, "tcp_user_timeout": 5000, **CLIENT_KEEPALIVES}
    return {"ENGINE": "django.db.backends.postgresql", **address, "OPTIONS": {**limits, **parts}}


def folder(name: str, default: Path | None = None) -> Path:
    path = require(name) if default is None else optional(name, str(default))
    if "://" in path:
        raise ImproperlyConfigured(f"{name} must be a folder that every host mounts, not {path}")
    return Path(path).absolute()


def folders(name: str, *default: Path) -> list[Path]:
    """Absolute paths, separated as in PATH."""
    paths = [Path(part) for part in optional(name, os.pathsep.join(map(str, default))).split(os.pathsep) if part]
    for path in paths:
        if not path.is_absolute():
            raise ImproperlyConfigured(f"{name} must hold absolute paths, not {str(path)!r}")
    return paths


def storage(name: str, place: str) -> str:
    """A folder, or the URI of a prefix in a bucket."""
    try:
        return storage_uri(name, place)
    except JobRejected as error:
        raise ImproperlyConfigured(str(error)) from None


def storages(name: str, default: str) -> list[str]:
    """Absolute paths and URIs, separated as in PATH."""
    places = [part for part in re.split(r":(?!//)", optional(name, default)) if part]
    for place in places:
        if not is_absolute(place):
            raise ImproperlyConfigured(f"{name} must hold absolute paths and URIs, not {place!r}")
    return [storage(name, place) for place in places]


# ---------------------------------------------------------------- paths, commands and limits

ROOT = Path(__file__).resolve().parent.parent

WEIR_VAR = folder("WEIR_VAR")
#: Storage of checkpoints: a folder that every host mounts, or s3://bucket/prefix.
WEIR_STORAGE = storage("WEIR_STORAGE", optional("WEIR_STORAGE", str(WEIR_VAR / "storage")))
WEIR_INPUTS = folder("WEIR_INPUTS", WEIR_VAR / "inputs")
WEIR_LOGS = folder("WEIR_LOGS", WEIR_VAR / "log")
#: A restore request may name a savepoint only below these roots.
WEIR_SAVEPOINT_ROOTS = storages("WEIR_SAVEPOINT_ROOTS", WEIR_STORAGE)
#: Keys that sign manifests; a savepoint from another folder must carry such a signature.
try:
    WEIR_MANIFEST_KEYS = parse_keys(optional("WEIR_MANIFEST_KEY", ""))
except ValueError as error:
    raise ImproperlyConfigured(str(error)) from None
#: Logs of slots are shown from these folders, such as the work folder of Spark's workers on a shared file system.
WEIR_SLOT_LOGS = folders("WEIR_SLOT_LOGS")
#: Job parameters may name folders below these roots only, and no folder of Weir itself.
WEIR_DATA_ROOTS = folders("WEIR_DATA_ROOTS", WEIR_VAR / "data", WEIR_VAR / "demo")

#: Hosts that jobs may connect to, besides those of named connections: `host`, `host:port` or `*.domain`.
WEIR_DATA_HOSTS = optional("WEIR_DATA_HOSTS", "").split()

set_added_settings(optional(SETTINGS_VARIABLE, ""))  # which job versions may choose
set_slot_server(optional(REMOTE_VARIABLE, ""))  # whose settings they may not choose

#: Command of a job master; the run id and the attempt token are appended.
WEIR_MASTER_COMMAND = [sys.executable, "-m", "runtime.launch.spark", "run"]
#: Command of the job master of a run in BATCH, with the same arguments.
WEIR_BATCH_COMMAND = [sys.executable, "-m", "spark_jobs.batch.master", "run"]
#: Command of the PySpark stages; the verb and its options are appended.
WEIR_STAGES_COMMAND = [sys.executable, "-m", "spark_jobs"]
WEIR_COMPILE_TIMEOUT_S = 600  # a compilation may query Spark for columns, on a busy machine or a full cluster
WEIR_SUSPEND_TIMEOUT_S = 10
WEIR_MASTER_SILENCE_S = 180  # a master touches its beat file about four times a second
WEIR_STAGE_SILENCE_S = 180  # a standing stage reports about once a second
WEIR_LEASE_S = 5
WEIR_RECONCILE_S = 1
WEIR_HEALTH_S = 5  # verdicts on the health of jobs; the numbers of runs have the same period
WEIR_ALERT_S = 3  # between looks for alerts to send
WEIR_STATE_QUERY_TIMEOUT_S = 600

#: Provider of single sign-on (OpenID Connect): its issuer, exactly as it calls itself. Empty: sign-in by password only.
WEIR_OIDC_ISSUER = issuer("WEIR_OIDC_ISSUER")
WEIR_OIDC_CLIENT_ID = require("WEIR_OIDC_CLIENT_ID") if WEIR_OIDC_ISSUER else ""
WEIR_OIDC_CLIENT_SECRET = require("WEIR_OIDC_CLIENT_SECRET") if WEIR_OIDC_ISSUER else ""
#: The claim with the names of the user's groups, and the scopes that ask for it.
WEIR_OIDC_GROUPS_CLAIM = optional("WEIR_OIDC_GROUPS_CLAIM", "groups")
WEIR_OIDC_SCOPE = optional("WEIR_OIDC_SCOPE", "openid profile email")
if "openid" not in WEIR_OIDC_SCOPE.split():
    raise ImproperlyConfigured("WEIR_OIDC_SCOPE must hold openid: without it the provider gives no ID token")

#: Threads of the web server; each keeps a connection to Postgres. Job masters need the other connections.
WEIR_WEB_THREADS = 16
#: Requests of a user over the API within a minute.
WEIR_API_RATE = count("WEIR_API_RATE") or 1_200
#: Lifetime of an API token for which its user chooses no other.
WEIR_TOKEN_DAYS = count("WEIR_TOKEN_DAYS") or 90
#: Maximum slots of a run; each slot is a process.
WEIR_MAX_SLOTS = count("WEIR_MAX_SLOTS") or 128

#: Runs that the workers of the queue `runs` supervise at a time; each has a job master with a Spark driver's JVM.
WEIR_RUNS = count("WEIR_RUNS") or 4
#: Standing stages that the workers of the queue `standing` supervise at a time; each has its own JVM.
WEIR_STANDING_STAGES = count("WEIR_STANDING_STAGES") or 4

#: How long rows are kept after their end, unless something needs them (`console.housekeeping.old_rows`).
WEIR_CHECKPOINT_DAYS = count("WEIR_CHECKPOINT_DAYS") or 30
WEIR_ATTEMPT_DAYS = count("WEIR_ATTEMPT_DAYS") or 90
WEIR_OPERATION_DAYS = count("WEIR_OPERATION_DAYS") or 400
#: How long a package stays that no version names, and an unpacked package on a host that no process uses.
WEIR_PACKAGE_DAYS = count("WEIR_PACKAGE_DAYS") or DEFAULT_DAYS

#: Address of the console in the links of alerts.
WEIR_CONSOLE_URL = optional("WEIR_CONSOLE_URL", "http://127.0.0.1:8000")

#: With less free space on a file system of Weir's, in MB, the console is not ready, and jobs have a finding.
WEIR_MIN_FREE_MB = count("WEIR_MIN_FREE_MB") or 500

#: How long the numbers of runs are kept, by the length of their intervals.
WEIR_METRICS_5S_HOURS = count("WEIR_METRICS_5S_HOURS") or 24
WEIR_METRICS_1M_DAYS = count("WEIR_METRICS_1M_DAYS") or 14
WEIR_METRICS_15M_DAYS = count("WEIR_METRICS_15M_DAYS") or 400

# ---------------------------------------------------------------- Django

SECRET_KEY = require("DJANGO_SECRET_KEY")
DEBUG = flag("DJANGO_DEBUG")
ALLOWED_HOSTS = names("DJANGO_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = names("DJANGO_TRUSTED_ORIGINS", "")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.humanize",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "csp",
    "django_htmx",
    "django_filters",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "console.accounts",
    "console.jobs",
    "console.runs",
    "console.checkpoints",
    "console.metrics",
    "console.health",
    "console.operations",
    "console.incidents",
    "console.alerts",
    "console.ui",
    "console.api",
]

MIDDLEWARE = [
    "console.ui.live.pace.PaceMiddleware",
    "console.accounts.middleware.RequestIdMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "console.accounts.middleware.CompressionMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

ROOT_URLCONF = "console.urls"

# A thread of the web server keeps its connection, and checks it before a request. So does a thread of a worker, before
# a task: the periodic tasks of an idle console would open two connections a second.
DATABASES = {"default": {**postgres("DATABASE_URL"), "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    # Rendered blocks of pages, of up to 150 KB each. The maximum age bounds that of relative times in a block.
    "fragments": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "fragments",
        "TIMEOUT": 10,
        "OPTIONS": {"MAX_ENTRIES": 200},
    },
}

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["console.accounts.backends.StoredPermissions"]
PASSWORD_HASHERS = ["console.accounts.hashers.Argon2"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

#: Limit of a request body; stored fields have much lower limits of their own.
DATA_UPLOAD_MAX_MEMORY_SIZE = 512 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 1000  # inputs of a form

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # serves files from their packages, so a start needs no collectstatic

# ---------------------------------------------------------------- browser security

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    }
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Browsers store cookies per host, not per port: two consoles on a machine must not sign each other out.
_HERE = hashlib.blake2s(str(WEIR_VAR).encode(), digest_size=4).hexdigest()
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = f"weir_session_{_HERE}", f"weir_csrf_{_HERE}"
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = flag("DJANGO_HTTPS")
# A browser that has seen the console over HTTPS uses no HTTP for a year. Other services of the domain are not affected.
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if flag("DJANGO_HTTPS") else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if flag("DJANGO_HTTPS") else None

# ---------------------------------------------------------------- REST

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "console.api.auth.BearerAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["console.api.parsing.MsgspecJson"],
    "DEFAULT_PARSER_CLASSES": ["console.api.parsing.StorableJson"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "console.api.pagination.NewestFirst",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_THROTTLE_CLASSES": ["console.accounts.throttling.UserThrottle"],
    "DEFAULT_THROTTLE_RATES": {"login": "30/min", "provider": "30/min", "user": f"{WEIR_API_RATE}/min"},
    # Proxies in front of the console. With 0, X-Forwarded-For is ignored: a client could forge it.
    "NUM_PROXIES": count("WEIR_NUM_PROXIES"),
    "EXCEPTION_HANDLER": "console.api.problems.handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Weir",
    "DESCRIPTION": "Streaming jobs on Spark: definitions, runs, checkpoints and operations.",
    "VERSION": version(DISTRIBUTION),
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "RunStateEnum": "console.jobs.models.RUN_STATES",
        "PackageStateEnum": "console.jobs.models.PACKAGE_STATES",
        "VersionStateEnum": "console.jobs.models.VERSION_STATES",
        "OperationStateEnum": "console.operations.models.OPERATION_STATES",
        "OperationKindEnum": "console.operations.models.OPERATION_KINDS",
        "BulkKindEnum": "console.operations.bulk.BULK_ACTS",
        "BulkStateEnum": "console.operations.bulk.BULK_STATES",
        "CheckpointKindEnum": "console.checkpoints.models.CHECKPOINT_KINDS",
        "CheckpointOutcomeEnum": "console.checkpoints.filters.OUTCOMES",
        "StateQueryStateEnum": "console.checkpoints.models.QUERY_STATES",
        "AttemptOutcomeEnum": "console.jobs.models.ATTEMPT_OUTCOMES",
        "StageStateEnum": "console.jobs.models.STAGE_STATES",
    },
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "console.api.openapi.document_common_parts",
    ],
}

# ---------------------------------------------------------------- Celery: a message is a wake-up, never a fact

CELERY_BROKER_URL = require("CELERY_BROKER_URL")
CELERY_TASK_IGNORE_RESULT = True
CELERY_DB_REUSE_MAX = sys.maxsize  # tasks after which Celery closes the connection of a thread
# Messages are acknowledged on receipt: the reconciler resends a lost wake-up. With late acknowledgement a message stays
# open for a whole run. If the broker connection is lost then, kombu's `restore_unacked` fails on the closed connection,
# and the worker takes no further message until its runs have ended.
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_DEFAULT_QUEUE = "housekeeping"
CELERY_TASK_QUEUES = [Queue(name, Exchange(name), name) for name in ("runs", "stages", "standing", "housekeeping")]
CELERY_TASK_ROUTES = {
    "console.tasks.supervise_run": {"queue": "runs"},
    "console.tasks.attend_stage": {"queue": "standing"},
    "console.tasks.compile_version": {"queue": "stages"},
    "console.tasks.describe_package": {"queue": "stages"},
    "console.tasks.sync_pipelines": {"queue": "stages"},
    "console.tasks.answer_state_query": {"queue": "stages"},
    "console.tasks.reconcile": {"queue": "housekeeping"},
    "console.tasks.store_verdicts": {"queue": "housekeeping"},
    "console.tasks.deliver_alerts": {"queue": "housekeeping"},
    "console.tasks.maintain": {"queue": "stages"},  # a pass after a pause has much to aggregate
    "console.tasks.advance_operations": {"queue": "stages"},  # large folders and snapshots take their time
    "console.tasks.remove_lineage_folders": {"queue": "stages"},  # large folders take their time
    "console.tasks.remove_old_rows": {"queue": "stages"},  # a pass after a pause has much to remove
    "console.tasks.remove_unused_packages": {"queue": "stages"},  # the storage may be slow
}
CELERY_WORKER_POOL = "console.celery:ThreadPool"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True  # a busy worker must not swallow the next run's wake-up
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False  # a run outlives an outage of the broker
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A broker that hangs must not block the request that sends a wake-up: after a timeout the reconciler resends it.
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 3, "socket_timeout": 5, "max_retries": 0}
CELERY_BEAT_SCHEDULER = "console.beat:MonotonicScheduler"
CELERY_BEAT_SCHEDULE = {
    # `expires`: a pass that no worker took in time is obsolete, since the next pass reads newer rows.
    "reconcile": {
        "task": "console.tasks.reconcile",
        "schedule": schedule(WEIR_RECONCILE_S),
        "options": {"expires": 3},
    },
    "remove-lineage-folders": {
        "task": "console.tasks.remove_lineage_folders",
        "schedule": schedule(60),
        "options": {"expires": 60},
    },
    "remove-old-rows": {
        "task": "console.tasks.remove_old_rows",
        "schedule": schedule(60),
        "options": {"expires": 60},
    },
    "remove-unused-packages": {
        "task": "console.tasks.remove_unused_packages",
        "schedule": schedule(300),
        "options": {"expires": 300},
    },
    "run-schedules": {
        "task": "console.tasks.run_schedules",
        "schedule": schedule(15),
        "options": {"expires": 15},
    },
    "advance-operations": {
        "task": "console.tasks.advance_operations",
        "schedule": schedule(5),
        "options": {"expires": 5},
    },
    "store-verdicts": {
        "task": "console.tasks.store_verdicts",
        "schedule": schedule(WEIR_HEALTH_S),
        "options": {"expires": WEIR_HEALTH_S},
    },
    "deliver-alerts": {
        "task": "console.tasks.deliver_alerts",
        "schedule": schedule(WEIR_ALERT_S),
        "options": {"expires": WEIR_ALERT_S},
    },
    "maintain-metrics": {
        "task": "console.tasks.maintain",
        "schedule": schedule(60),
        "options": {"expires": 60},
    },
    "sync-pipelines": {
        "task": "console.tasks.sync_pipelines",
        "schedule": schedule(300),
        "options": {"expires": 300},
    },
}
CELERY_TIMEZONE = "UTC"

# ---------------------------------------------------------------- logs: a JSON object per line, on stderr

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]
structlog.configure(
    processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processor": structlog.processors.JSONRenderer(),
            "foreign_pre_chain": _SHARED,
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["stderr"], "level": optional("WEIR_LOG_LEVEL", "INFO").upper()},
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "django.server": {"handlers": [], "propagate": True},
        # The reconciler runs every second; at INFO each pass would log three lines.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},  # at INFO it logs the addresses of webhooks, which may contain secrets
        "waitress.queue": {"level": "ERROR"},  # a warning for each request that waits for a thread
    },
}
