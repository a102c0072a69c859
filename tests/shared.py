"""Objects of the test process that slots call, whether they are threads of it or processes of a Spark executor.

An instance of `Shared` stays in the process that made it. Pickled into another process it becomes a `Remote`, which
forwards calls and reads of attributes over a connection; arguments and results are pickled with cloudpickle.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final

from pyspark import cloudpickle


class Shared:
    """Base class. Calls from slots arrive in threads: a subclass guards what it changes in several steps."""

    def __reduce__(self) -> Any:
        return _resolve, (*_server().address_of(self),)


class Remote:
    """Stands for a `Shared` of another process. Raises what the call raised there."""

    def __init__(self, address: str, key: bytes, number: int) -> None:
        self._place = (address, key, number)
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return _resolve, self._place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_method, value = self._ask("read", name)
        return (lambda *args, **kwargs: self._ask("call", name, args, kwargs)) if is_method else value

    def __call__(self, *args: Any) -> Any:
        return self._ask("call", "__call__", args, {})

    def _ask(self, *question: Any) -> Any:
        address, key, number = self._place
        if not hasattr(self._local, "connection"):
            self._local.connection = Client(address, authkey=key)
        self._local.connection.send_bytes(_pickled((number, *question)))
        worked, answer = cloudpickle.loads(self._local.connection.recv_bytes())
        if not worked:
            raise answer
        return answer


def _pickled(value: Any) -> bytes:
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


class _Server:
    """One per process, for its life. A thread per connection."""

    def __init__(self) -> None:
        self._key: Final = secrets.token_bytes(16)
        self._objects: dict[int, Shared] = {}
        self._numbers = itertools.count(1)
        self._listener = Listener(authkey=self._key)
        threading.Thread(target=self._accept, name="shared", daemon=True).start()

    def address_of(self, shared: Shared) -> tuple[str, bytes, int]:
        number = next((n for n, candidate in self._objects.items() if candidate is shared), None) or next(self._numbers)
        self._objects[number] = shared
        return str(self._listener.address), self._key, number

    def find(self, key: bytes, number: int) -> Shared | None:
        return self._objects[number] if key == self._key else None

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), name="shared", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        while True:
            try:
                number, kind, name, *arguments = cloudpickle.loads(connection.recv_bytes())
            except (EOFError, OSError):  # the slot has ended, or was killed
                return
            connection.send_bytes(_pickled(self._answer(self._objects[number], kind, name, arguments)))

    @staticmethod
    def _answer(shared: Shared, kind: str, name: str, arguments: list[Any]) -> tuple[bool, Any]:
        try:
            attribute = getattr(shared, name)
            if kind == "read":
                return True, (True, None) if callable(attribute) else (False, attribute)
            return True, attribute(*arguments[0], **arguments[1])
        except Exception as error:
            return False, error


_servers: list[_Server] = []
_making = threading.Lock()


def _server() -> _Server:
    with _making:
        if not _servers:
            _servers.append(_Server())
        return _servers[0]


def _resolve(address: str, key: bytes, number: int) -> Any:
    """The object itself in its own process, a `Remote` elsewhere."""
    target = _servers[0].find(key, number) if _servers else None
    return target if target is not None else Remote(address, key, number)


class Notes(Shared):
    """A list that slots append to."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        self.values.append(value)
