"""A schema registry for tests: an HTTP server with the part of the REST API that clients use to read and register.

No registry can be had from the package registries. This one checks Avro schemas for backward compatibility, as the real
one does by default, with Apache's own checker.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType


@dataclass
class Registry:
    url: str = ""
    schemas: list[tuple[str, str]] = field(default_factory=list)  #: (type, text); the id is the place, from 1
    subjects: dict[str, list[int]] = field(default_factory=dict)
    user: str = ""  #: "name:password" that every request must bring
    requests: int = 0

    def add(self, subject: str, kind: str, text: str) -> int | None:
        """The id; None if the schema is not compatible with the newest schema of the subject."""
        versions = self.subjects.setdefault(subject, [])
        if kind == "AVRO" and versions:
            reader, writer = (avro.schema.parse(each) for each in (text, self.schemas[versions[-1] - 1][1]))
            checker: Any = ReaderWriterCompatibilityChecker
            result = checker().get_compatibility(reader, writer)
            if result.compatibility is not SchemaCompatibilityType.compatible:
                return None
        if (kind, text) not in self.schemas:
            self.schemas.append((kind, text))
        number = self.schemas.index((kind, text)) + 1
        if number not in versions:
            versions.append(number)
        return number


@contextmanager
def running_registry() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
            number = int(parts[2]) if parts[:2] == ["schemas", "ids"] else 0
            if not self.is_known():
                return
            if not 0 < number <= len(registry.schemas):
                self.answer(404, {"error_code": 40403, "message": "Schema not found"})
                return
            kind, text = registry.schemas[number - 1]
            self.answer(200, {"schema": text, "schemaType": kind})

        def do_POST(self) -> None:
            parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.is_known():
                return
            number = registry.add(parts[1], body.get("schemaType", "AVRO"), body["schema"])
            if number is None:
                message = "Schema being registered is incompatible with an earlier schema"
                self.answer(409, {"error_code": 409, "message": message})
                return
            self.answer(200, {"id": number, "subject": parts[1], "version": 1, "schema": body["schema"]})

        def is_known(self) -> bool:
            registry.requests += 1
            header = "Basic " + base64.b64encode(registry.user.encode()).decode()
            if not registry.user or self.headers.get("Authorization") == header:
                return True
            self.answer(401, {"error_code": 401, "message": "Unauthorized"})
            return False

        def answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield registry
        server.shutdown()
