"""Example pipelines with sample input, and the demo: a distribution beside the product.

    pipelines/      the pipelines, registered by the entry point group `weir.pipelines`
    samples/        input of the examples, and the DuckDB queries that check their output
    demo/           a job that processes a year of flights exactly once, although its processes are killed
    nycflights.py   location of the demo's data
    schemas.py      the contract of each dataset of the demo
    feeder.py       copies a year of flights into a folder
    oracle.py       the expected output of the demo job, computed by plain Spark
    environment.py  the running stack: folders, variables, address
    database.py     the Postgres database of the examples
    __main__.py     demo, prepare, feed, check

The examples meet the product as an author (`weir`) and as an operator (REST, and the commands of `stack`).
"""
