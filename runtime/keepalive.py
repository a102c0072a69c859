"""Bounds on silent TCP connections to Postgres. By the defaults of the kernel a lost peer is noticed after two hours.

Until the server notices that a client's host is gone, the session holds its locks: of rows and advisory locks. The
server therefore ends such a session after about the length of a lease, when another host takes the work over.
"""

from typing import Final

#: Parameters of libpq: this process notices a lost server.
CLIENT_KEEPALIVES: Final = {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3"}
#: The server notices a lost client after 2 s + 3 x 1 s. No effect over a Unix socket, whose both ends share a host.
#: Statements after the connect, since PgBouncer refuses a connection with `options`.
SERVER_KEEPALIVES: Final = (
    "SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 5000"
)
