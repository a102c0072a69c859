"""S3 for all its clients: the form of a URI, the variables of the environment, and which errors pass by themselves.

Endpoint, region and credentials come from the environment of each host or from its instance role, never from a URI.
"""

import os
import re
from typing import Final

SCHEME: Final = "s3://"
URI: Final = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]+)(?P<key>(?:/[^/?#%\\]+)+)")
PART_BYTES: Final = 8 << 20  #: of a large object that is written or read
CONNECT_TIMEOUT_S: Final = 5
RETRIES: Final = 4  #: of a request
RETRY_TIMEOUT_S: Final = 20  #: from a request to its last repetition
READ_TIMEOUT_S: Final = 60  #: for a reply
MISSING_CODE: Final = "NoSuchKey"
MISSING_UPLOAD_CODE: Final = "NoSuchUpload"
MISSING_STATUS: Final = 404
ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL")
ENDPOINT_URL: Final = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/\S*)?")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_TEMPORARY_STATUSES: Final = frozenset({408, 429})  #: beside 5xx
_TEMPORARY_CODES: Final = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        MISSING_UPLOAD_CODE,  # of a server that may have completed the upload, whose reply was lost
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
    }
)
_STATUS: Final = re.compile(r"status code: (\d{3})")
_ERROR_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")  #: of a request, or of an object in a deletion
_TRANSPORT_TEXT: Final = "HTTP error: "  #: of an error without an answer


def is_bucket(place: str) -> bool:
    """Whether a storage, or the path of a connector, is in an object store, which has no folders on a host."""
    return place.startswith(SCHEME)


def is_prefix(uri: str) -> bool:
    """Whether `uri` names a prefix of a bucket, without a slash at its end.

    Parsers of URLs drop control characters, and spaces at the ends. Two texts would then name the same prefix.
    """
    is_plain = uri.isprintable() and uri == uri.strip() and not {".", ".."}.intersection(uri.split("/"))
    return is_plain and URI.fullmatch(uri) is not None


def endpoint() -> str | None:
    """The endpoint of this host, if it is not the one of AWS."""
    return next((value for name in reversed(ENDPOINT_VARIABLES) if (value := os.environ.get(name))), None)


def region() -> str | None:
    return next((value for name in _REGION_VARIABLES if (value := os.environ.get(name))), None)


def wrong_endpoint() -> str | None:
    """The variable with an endpoint that the libraries would answer by a panic or by lasting errors."""
    for variable in ENDPOINT_VARIABLES:
        value = os.environ.get(variable)
        if value and not ENDPOINT_URL.fullmatch(value):
            return variable
    return None


def is_temporary(status: int | None, code: str | None) -> bool:
    """Whether the store does not serve now. A 404 without a code is the answer of a gateway. None: no answer."""
    if code in _TEMPORARY_CODES or status is None:
        return True
    return status >= 500 or status in _TEMPORARY_STATUSES or (status == MISSING_STATUS and code is None)


# ------------------------------------------------------------ errors of object_store, below obstore and deltalake


def status_of(text: str) -> int | None:
    match = _STATUS.search(text)
    return None if match is None else int(match[1])


def error_code_of(text: str) -> str | None:
    match = _ERROR_CODE.search(text)
    return None if match is None else match[1] or match[2]


def is_temporary_text(text: str) -> bool:
    """`is_temporary` of an error of the library, which names status and code in its text only."""
    status, code = status_of(text), error_code_of(text)
    if status is None and code not in _TEMPORARY_CODES:
        return _TRANSPORT_TEXT in text
    return is_temporary(status, code)
