"""A slot in a process of its own, for tests that kill or stop it: sends on one channel for ever, or only listens.

Usage: python channel_process.py send ADDRESS | listen. Prints its own address once it stands.
"""

import sys
import threading

from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.messages import Message, Watermark
from runtime.io.socket_exchange import SocketExchange


class Deaf:
    """A listener that is not interested."""

    def on_message(self, channel: ChannelId, message: Message) -> None: ...
    def on_credit(self, channel: ChannelId, nbytes: int) -> None: ...
    def on_lost(self, channel: ChannelId, reason: str, is_own: bool = False) -> None: ...


def main(role: str, secret: str, peer: str = "") -> None:
    exchange = SocketExchange(1, Token(7), secret, Deaf())
    if role == "send":
        exchange.connect({0: peer})
        exchange.send(ChannelId(0, 1, 0), 0, Watermark(1))
    sys.stdout.write(exchange.address + "\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
