"""A slot's control connection in a process of its own, for tests that kill or stop it.

Usage: python control_process.py ADDRESS TOKEN SECRET SLOT. Sends a few notes, then waits.
"""

import os
import sys
import threading

from runtime.io.control.endpoints import ControlClient, Hello
from tests.contracts.wiring import Note, ToSlot


def main(address: str, token: str, secret: str, slot: str) -> None:
    hello = Hello(token=int(token), secret=secret, slot=int(slot), pid=os.getpid(), host="here", address="none")
    client = ControlClient(address, hello, ToSlot, on_message=lambda message: None, on_lost=lambda reason: None)
    for number in range(100):
        client.send(Note(number))
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
