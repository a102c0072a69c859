"""Uploads of packages, as the web server and the view agree on them.

The server asks the application before it receives the body of an upload. It calls it with the head of the request, and
with `UPLOADER` in the WSGI environment. The view stores the id of the user there if the user may upload.
"""

from typing import Final

UPLOAD_PATH: Final = "/api/v1/packages/"  #: of `console.api.definitions.Packages`
UPLOADER: Final = "weir.uploader"  #: in the environment of a question: the id of the user, None until it is authorised
