"""Access records on a stream that other processes may write to as well."""

from __future__ import annotations

import io
import os
import select

import pytest

from gateway.edge.access_log import AccessLog
from waiting import until


class Pipe(io.BytesIO):
    """Remembers each write."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, data):
        self.writes.append(bytes(data))
        return super().write(data)


@pytest.mark.parametrize("at_once", [10, 100, select.PIPE_BUF])
async def test_lines_go_out_whole_and_in_pieces_of_the_size_asked_for(at_once):
    stream = Pipe()
    log = AccessLog(stream, at_once)
    lines = [b"x" * length for length in (3, 4, 0, 9, 50, 5, 94, 5, 300, 1)]
    for line in lines:
        log.write(line)
    log.close()
    assert stream.getvalue() == b"".join(line + b"\n" for line in lines)
    for write in stream.writes:
        assert write.endswith(b"\n")
        assert len(write) <= at_once or write.count(b"\n") == 1
    for one, other in zip(stream.writes, stream.writes[1:], strict=False):
        assert len(one) + len(other.partition(b"\n")[0]) + 1 > at_once  # as full as it can be


async def test_lines_wait_a_moment_for_each_other():
    stream = Pipe()
    log = AccessLog(stream)
    log.write(b"a")
    log.write(b"b")
    assert stream.writes == []
    await until(lambda: stream.writes)
    assert stream.writes == [b"a\nb\n"]


async def test_a_reader_that_went_away_takes_nothing_with_it():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as stream:
        log = AccessLog(stream)
        for line in (b"a", b"b"):
            log.write(line)
            log.close()
