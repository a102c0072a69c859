"""Bounds on silent TCP connections to Postgres. By the defaults of the kernel a lost peer is noticed after two hours.

Until the server notices that a client's host is gone, the session holds its locks: of rows and advisory locks. The
server therefore ends such a session after about the length of a lease, when another host takes the work over.
"""

from typing import Final

#: Parameters of libpq: this process notices a lost server.
CLIENT_KEEPALIVES: Final = {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3"}
#: The server notices a lost client after 2 s + 3 x 1 s. No effect over a Unix socket, whose both ends share a host.
#: A statement after the connect, since PgBouncer refuses a connection with `options`. It leaves out settings that the
#: server does not know: Postgres 11 has no `tcp_user_timeout`.
SERVER_KEEPALIVES: Final = (
    "SELECT set_config(name, value, false) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '2'), "
    "('tcp_keepalives_interval', '1'), ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '5000')) "
    "AS wanted (name, value) USING (name)"
)
