"""Events cut out of bytes. That chunking does not matter is in tests/property."""

import pytest

from gateway.dialects import sse

EVENTS = [
    b"data: a\n\n",
    b"data: a\r\n\r\n",
    b"event: x\ndata: a\n\n",
    b": ping\n\n",
    b"id: 1\nevent: x\nretry: 5\ndata:a\n\n",
]


@pytest.mark.parametrize("first", EVENTS)
@pytest.mark.parametrize("second", EVENTS)
def test_row_3_all_lines_come_out_as_they_went_in(first, second):
    splitter = sse.Splitter()
    events = splitter.receive(first + second) + splitter.end()
    assert [event.raw for event in events] == [first, second]


def test_row_1_a_character_cut_in_two_is_whole_again():
    raw = 'data: {"content":"北京🙂"}\n\n'.encode()
    for at in range(len(raw)):
        splitter = sse.Splitter()
        events = splitter.receive(raw[:at]) + splitter.receive(raw[at:])
        assert [event.raw for event in events] == [raw]


def test_an_unfinished_event_is_held_until_its_blank_line():
    splitter = sse.Splitter()
    assert splitter.receive(b"data: a\n") == []
    assert splitter.receive(b"\ndata") == [sse.Event(b"data: a\n\n")]
    assert splitter.end() == [sse.Event(b"data")]
    assert splitter.end() == []


def test_one_byte_is_no_event():
    assert sse.Splitter().receive(b"x") == []
    assert sse.Splitter().receive(b"") == []


def test_a_bare_cr_waits_for_its_lf():
    splitter = sse.Splitter()
    assert splitter.receive(b"data: a\r\n\r") == []
    assert splitter.receive(b"\n") == [sse.Event(b"data: a\r\n\r\n")]
    assert splitter.receive(b"data: b\r\r") == []
    assert splitter.receive(b"data") == [sse.Event(b"data: b\r\r")]


def test_an_oversized_event_comes_in_marked_pieces_and_the_next_one_is_normal():
    splitter = sse.Splitter(max_event=10)
    pieces = splitter.receive(b"data: 0123456789")
    assert pieces == [sse.Event(b"data: 0123456", oversized=True)]
    rest = splitter.receive(b"abc\n\ndata: a\n\n")
    assert rest == [sse.Event(b"789abc\n\n", oversized=True), sse.Event(b"data: a\n\n")]


def test_an_oversized_event_in_one_chunk_is_marked_too():
    assert sse.Splitter(max_event=10).receive(b"data: 0123456789\n\n")[0].oversized


@pytest.mark.parametrize(
    ("raw", "data", "name"),
    [
        (b"data: a\n\n", b"a", b""),
        (b"data:a\n\n", b"a", b""),
        (b"data:  a\n\n", b" a", b""),
        (b"data: a\ndata: b\n\n", b"a\nb", b""),
        (b"data\n\n", b"", b""),
        (b"\xef\xbb\xbfdata: a\n\n", b"a", b""),
        (b": data: no\n\n", b"", b""),
        (b"database: no\n\n", b"", b""),
        (b"event: e\r\ndata: a\r\n\r\n", b"a", b"e"),
        (b"\nevent:e\ndata: a\n\n", b"a", b"e"),
        (b"event: one\nevent: two\ndata: a\n\n", b"a", b"two"),
    ],
)
def test_fields(raw, data, name):
    assert sse.data_of(raw) == data
    assert sse.name_of(raw) == name


def test_other_data_in_the_same_event():
    assert sse.with_data(b"data: a\n\n", b"b") == b"data: b\n\n"
    assert sse.with_data(b"id: 1\r\ndata: a\r\ndata: b\r\n\r\n", b"x\ny") == (
        b"id: 1\r\ndata: x\r\ndata: y\r\n\r\n"
    )
    assert sse.with_data(b"\xef\xbb\xbfdata: a\n\n", b"b") == b"\xef\xbb\xbfdata: b\n\n"


def test_new_events():
    assert sse.event(b"{}") == b"data: {}\n\n"
    assert sse.event(b"{}", "error") == b"event: error\ndata: {}\n\n"
