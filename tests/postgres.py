"""The test server as connectors get its address: the password is a reference to a secret."""

import os

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SECRET = "TEST_POSTGRES"


def address_without_password(url: str) -> str:
    """`url` with a reference in place of the password, which is set for this process and processes it starts."""
    password = conninfo_to_dict(url).get("password")
    if password is None:
        return url
    os.environ[f"WEIR_SECRET_{_SECRET}"] = str(password)
    return make_conninfo(url, password=f"${{secret:{_SECRET}}}")
