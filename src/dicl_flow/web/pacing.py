"""How fast clients must send and read, so that a slow one does not keep memory for long."""

import asyncio
from contextlib import ExitStack

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SLOWEST = 64 * 1024
"""Bytes per second that a client must reach after the timeout."""
_PIECE = 256 * 1024


class PacedResponse(Response):
    """An answer that is sent as fast as it is read, and given up if that takes too long.

    `kept` is closed at the end: what is counted for the request until then.
    """

    def __init__(
        self,
        body: bytes,
        media_type: str,
        headers: dict[str, str],
        timeout: float,
        kept: ExitStack,
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._seconds, self._kept = timeout + len(body) / SLOWEST, kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; the server closes the connection if it is not complete."""
        with self._kept:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._send(send)
            except TimeoutError:
                return

    async def _send(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        whole = memoryview(self.body)
        for place in range(0, len(whole), _PIECE):
            piece = bytes(whole[place : place + _PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
