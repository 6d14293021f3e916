"""A request to an engine, the same byte for byte as aiohttp's and for less work.

aiohttp completes headers by some of its own, which a proxy must then tell it to leave out, and
starts a task for every body, which writes it a turn of the loop later. Here a small body leaves
together with its headers, in one write. From Python 3.12 on aiohttp starts that task eagerly:
then ``send`` may go.
"""

from __future__ import annotations

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.payload import BytesPayload
from multidict import CIMultiDict

AT_ONCE = 32 * 1024  # bytes of a body; a transport takes 64 KiB before it asks a writer to wait


class OutgoingRequest(aiohttp.ClientRequest):
    """To be a session's ``request_class``. Its headers are those it is given, Host and the length.

    It leans on insides of aiohttp, which tests compare with aiohttp's own way.
    """

    def update_auto_headers(self, skip_auto_headers: object) -> None:  # noqa: ARG002 - none is added
        """Add none; aiohttp adds this one elsewhere, to a body without a type."""
        self._skip_auto_headers = CIMultiDict({"Content-Type": None})

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        """Write a small body in place. All else, and who would have to wait, goes aiohttp's way."""
        protocol, body = conn.protocol, self.body
        if (
            protocol is None
            or protocol.writing_paused
            or not isinstance(body, BytesPayload)
            or (body.size or 0) > AT_ONCE
        ):
            return await super().send(conn)
        writer = StreamWriter(protocol, self.loop)
        await writer.write_headers(f"{self.method} {self.url.raw_path_qs} HTTP/1.1", self.headers)
        await body.write(writer)
        writer.set_eof()
        protocol.start_timeout()
        return self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self._session,
            stream_writer=writer,
        )
