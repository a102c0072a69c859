"""The single-machine stack: starts, supervises and stops the processes of `make up` and the tests.

    launch/         creates `.venv` and finds Java; standard library only, Python 3.8 or newer
    settings.py     the `Settings` value: folders, addresses, delays
    processes.py    identity, signals and the search for leftover processes; no policy
    folders.py      folders for data and sockets that the service account can reach
    services.py     Postgres and Redis: the real servers, in the foreground
    plan.py         the processes that make up Weir
    supervisor.py   starts, restarts with back-off, stops in order
    stack.py        the life of a stack
    __main__.py     up, down, clean, status, logs

The stack starts console, runtime and spark_jobs as processes and imports none of them. `examples` has the demo.
"""
