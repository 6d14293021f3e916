from pathlib import Path

import msgspec

from gateway.simulate.oracle import Oracle, Truth


def truth(owner: str) -> Truth:
    return Truth(
        rid=owner,
        owner=owner,
        prompt_tokens=9,
        prefill_tokens=1,
        cached_tokens=0,
        completion_tokens=4,
        stage="finished",
        finish="length",
        status=200,
        leaked=True,
        exposed_tokens=8,
        copied={"victim": 3},
        reserved_pages=1,
        sent_pages=1,
        received_tokens=1,
    )


def test_lines_are_appended_at_once_and_read_back(tmp_path: Path):
    path = tmp_path / "oracle.jsonl"
    for owner in ("a", "b"):
        oracle = Oracle(path)
        oracle.record(truth(owner))
        assert path.read_bytes().endswith(b"\n")
        oracle.close()
    lines = path.read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Truth) for line in lines] == [truth("a"), truth("b")]


def test_memory_is_bounded_and_forgets_the_oldest():
    oracle = Oracle(keep=2)
    for owner in "abc":
        oracle.record(truth(owner))
    assert list(oracle.records) == ["b", "c"]
