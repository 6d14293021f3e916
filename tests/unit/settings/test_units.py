from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("100ms", 0.1), ("2m", 120), ("24h", 86400), ("7d", 604800), ("1.5 s", 1.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    ["10", "s", "", "1h30m", "-1s", "1e3s", "١s", "1S", "10s\n", " 1s", 10, 1.0, True, None],
)
def test_no_durations(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        units.duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.1, "100ms"), (1, "1s"), (1.5, "1.5s"), (90, "90s"), (120, "2m"), (86400, "24h")],
)
def test_duration_texts(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


@given(st.integers(0, 10**8), st.sampled_from([0.001, 1, 60, 3600]))
def test_a_written_duration_reads_back(amount: int, unit: float) -> None:
    seconds = amount * unit
    assert units.duration(units.duration_text(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "amount"),
    [(5, 5), ("5", 5), ("5B", 5), ("1kB", 1000), ("1 KiB", 1024), ("1.5MiB", 3 * 2**19)],
)
def test_sizes(value: object, amount: int) -> None:
    assert units.size(value) == amount


@pytest.mark.parametrize("value", ["", "MB", "1.0.0", "1 XB", "-1", True, None, 1.0, "0.1B"])
def test_no_sizes(value: object) -> None:
    with pytest.raises(ValueError, match="must be a"):
        units.size(value)


@given(st.integers(1, 2**40))
def test_a_written_size_reads_back(amount: int) -> None:
    assert units.size(units.size_text(amount)) == amount


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8080", "[::1]:8080", "localhost:0", "a-b.example:65535", "0.0.0.0:80"]
)
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(units.host_port(text)) == text


@pytest.mark.parametrize(
    "value",
    ["", ":", "a", "a:", ":1", "a:b", "a:-1", "a:65536", "a:1 ", "[]:1", "[::1]", "1.2.3:4", "é:1"],
)
def test_no_addresses(value: str) -> None:
    with pytest.raises(ValueError, match=r"must|does not|holds"):
        units.host_port(value)


@pytest.mark.parametrize(
    ("written", "base"),
    [
        ("http://h:1", "http://h:1"),
        ("https://h/", "https://h"),
        ("HTTP://h/a//", "http://h/a"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("http://h/v1beta", "http://h/v1beta"),
    ],
)
def test_urls(written: str, base: str) -> None:
    assert units.base_url(written) == base


@pytest.mark.parametrize(
    "value",
    [
        "", "h", "//h", "file:///etc/passwd", "http://", "http:///a", "http://h:0", "http://h:x",
        "http://u@h", "http://@h", "http://h?", "http://h#", "http://h\n", "http://h\t",
        "http://é", "http://[::1", "http://h\\@g", "http://h/v1", None, 1,
    ],
)  # fmt: skip
def test_no_urls(value: object) -> None:
    with pytest.raises(ValueError, match=r"must|is not a valid URL"):
        units.base_url(value)
