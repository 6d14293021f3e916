"""What the HTTP server's own log lines become."""

from __future__ import annotations

import pytest

from gateway.edge.relay import ClientGone
from gateway.edge.server import _protocol_log


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ClientGone("what a prompt said"), []),
        (ValueError("what a prompt said"), ["a client's connection broke: ValueError"]),
    ],
)
def test_a_line_holds_nothing_of_the_request_and_is_none_where_a_client_left(caplog, error, lines):
    caplog.set_level("INFO")
    _protocol_log().error("Error handling %s", "a secret", exc_info=error)
    assert caplog.messages == lines
    assert "said" not in caplog.text
