"""A client's connection: uvicorn's own, with the bounds that it lacks, and deaf to offers of another protocol.

uvicorn reads a request's head without any limit of size or time, and keeps an answer that nobody reads for ever. Where
HTTP/2 is offered, as Java's client and `curl --http2` do with every request, it answers without having read the body.
"""

import asyncio
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

_OFFERS = (b"upgrade", b"http2-settings")
_PER_HEADER = len(": " + "\r\n")


class Connection(HttpToolsProtocol):
    """For uvicorn's option `--http`."""

    HEAD_BYTES = 64 << 10  # of a request line and its headers
    HEAD_S = 30.0  # to send them, from the opening of the connection or its first byte after an answer
    UNREAD_S = 60.0  # without a byte of an answer being read

    _is_in_head = False
    _head_bytes = 0  # of an unfinished head, without the piece in which it began
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_head()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(_status(error))
        if self._head_bytes > self.HEAD_BYTES and self._is_in_head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._is_in_head or self.cycle is None or self.cycle.response_complete:
            self._limit_head()

    def _feed(self, data: bytes) -> None:
        """An offer of another protocol is declined by reading the same head again without it."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _head_without_offer(self) -> bytes:
        method = self.parser.get_method()
        if method == b"CONNECT":  # no header asks for it, so it would be asked for again
            raise httptools.HttpParserInvalidMethodError
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(word for word in value.split(b",") if word.strip().lower() not in _OFFERS)
            if name not in _OFFERS:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._end_head()
        if len(self.url) + sum(len(name) + len(value) + _PER_HEADER for name, value in self.headers) > self.HEAD_BYTES:
            raise _HeadTooLarge
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_unread(before=None)

    def _limit_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.HEAD_S, self.transport.close)

    def _end_head(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _limit_unread(self, before: int | None) -> None:
        """Look again and again whether the client has read of what is written for it; `before` is what was left."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
        elif left:
            if self._unread_timer is not None:
                self._unread_timer.cancel()
            self._unread_timer = self.loop.call_later(self.UNREAD_S, self._limit_unread, left)

    def _refuse(self, status: HTTPStatus) -> None:
        self._end_head()
        if not self.transport.is_closing():
            text = status.phrase.encode()
            head = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
            self.transport.write(STATUS_LINE[status] + head + text)
            self.transport.close()


class _HeadTooLarge(Exception):
    """Raised inside a callback of the parser, which wraps it."""


def _status(error: httptools.HttpParserError) -> HTTPStatus:
    if isinstance(error.__context__, _HeadTooLarge):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return HTTPStatus.BAD_REQUEST
