"""The stack on one machine: what `make up`, `make demo` and the tests start, supervise and end.

    launch/         makes `.venv` and finds Java; standard library only, any Python 3.8 or newer
    settings.py     one `Settings` value: folders, addresses, delays
    processes.py    identity, signals and the sweep; no policy
    folders.py      where data and sockets may lie when the checkout is out of a service's reach
    services.py     Postgres and Redis: the real servers, in the foreground
    supervisor.py   starts, restarts with back-off, ends in order
    stack.py        which processes make up Weir, in which order
    __main__.py     up, down, status, logs, demo

It meets console, runtime and spark_jobs as processes only and imports none of them.
"""
