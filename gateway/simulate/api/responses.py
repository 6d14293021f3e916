"""``/v1/responses``: whole and as events. Nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gateway.simulate import engine as pd
from gateway.simulate.api.service import (
    Body,
    Service,
    json_answer,
    named,
    read_body,
    request_id,
    send_events,
    service,
    whole_number,
)
from gateway.simulate.chats import from_responses
from gateway.simulate.engine import EngineRefusal

KEPT_BACK = 2  # SGLang takes two tokens off max_output_tokens


@dataclass(slots=True)
class Reply:
    """One response being made. ``number`` is the next event's sequence number."""

    service: Service
    body: Body
    id: str
    item: str
    created: int
    text: list[str] = field(default_factory=list)
    number: int = 0

    def response(
        self, status: str, sequence: pd.Sequence | None, output: list[Any]
    ) -> dict[str, Any]:
        """The response object; ``sequence`` is None while it has no usage yet."""
        body = self.body
        reasons = {"incomplete": {"reason": "max_output_tokens"}}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": str(body.get("model") or self.service.settings.model),
            "output": output,
            "status": status,
            "usage": _usage(sequence) if sequence else None,
            "parallel_tool_calls": True,
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "error": None,
            "incomplete_details": reasons.get(status),
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": body.get("store", True),
            "temperature": body.get("temperature"),
            "text": {"format": {"type": "text"}} if sequence else None,
            "top_p": body.get("top_p"),
            "truncation": "disabled",
            "user": body.get("user"),
            "metadata": body.get("metadata") or {},
        }

    def part(self, text: str) -> dict[str, Any]:
        """The message's only content part."""
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def message(self, content: list[Any], status: str) -> dict[str, Any]:
        """The only output item."""
        return {
            "id": self.item,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": "final_answer",
        }

    def ended(self, sequence: pd.Sequence, text: str) -> dict[str, Any]:
        """The response when it is over."""
        done = self.message([self.part(text)], "completed")
        return self.response(_status(sequence), sequence, [done] if text else [])

    def event(self, kind: str, **members: Any) -> bytes:
        """The next numbered event."""
        value = {**members, "sequence_number": self.number, "type": kind}
        self.number += 1
        return named(kind, value)

    def text_event(self, kind: str, **members: Any) -> bytes:
        """An event about the text part."""
        return self.event(kind, content_index=0, item_id=self.item, output_index=0, **members)


async def responses(request: web.Request) -> web.StreamResponse:
    """Answer an input."""
    body = await read_body(request)
    here = service(request)
    if body.get("background"):
        raise EngineRefusal("background: stored responses are not simulated.")
    chat = from_responses(body, inline_system=here.tokeniser.inline_system)
    prompt = await here.encode_chat(chat, request.content_length or 0)
    limit = whole_number(body, "max_output_tokens", least=1)
    limit = None if limit is None else max(1, limit - KEPT_BACK)
    rid = request_id(request, body)
    [sequence] = here.driver.open(here.works(rid, [prompt], body, limit))
    reply = Reply(here, body, f"resp_{rid}", f"msg_{here.new_id()}", here.now())
    if body.get("stream"):
        return await send_events(request, _frames(reply, sequence), [sequence])
    await here.driver.answer([sequence])
    return json_answer(reply.ended(sequence, here.tokeniser.decode(sequence.output)))


def error_body(refusal: EngineRefusal) -> dict[str, Any]:
    """The nested error of this endpoint."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {
        "error": {
            "message": refusal.message,
            "type": kind,
            "param": None,
            "code": refusal.status,
        }
    }


def _status(sequence: pd.Sequence) -> str:
    return {"length": "incomplete", "abort": "failed"}.get(sequence.finish, "completed")


def _usage(sequence: pd.Sequence) -> dict[str, Any]:
    prompt, output = len(sequence.work.prompt), len(sequence.output)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": sequence.cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


async def _frames(reply: Reply, sequence: pd.Sequence) -> AsyncGenerator[bytes, None]:
    """The captured order of events: created, in progress, item, part, deltas, and their ends."""
    for kind in ("response.created", "response.in_progress"):
        yield reply.event(kind, response=reply.response("in_progress", None, []))
    opened = False
    try:
        async with aclosing(reply.service.driver.deltas([sequence])) as deltas:
            async for delta in deltas:
                if not delta.text:
                    continue
                if not opened:
                    opened = True
                    for frame in _opening(reply):
                        yield frame
                reply.text.append(delta.text)
                yield reply.text_event("response.output_text.delta", delta=delta.text, logprobs=[])
    except EngineRefusal as refusal:
        failed = reply.response("failed", sequence, [])
        failed["error"] = {"code": "server_error", "message": refusal.message}
        yield reply.event("response.failed", response=failed)
        return
    text = "".join(reply.text)
    if opened:
        for frame in _closing(reply, text):
            yield frame
    yield reply.event(f"response.{_status(sequence)}", response=reply.ended(sequence, text))


def _opening(reply: Reply) -> list[bytes]:
    return [
        reply.event(
            "response.output_item.added", item=reply.message([], "in_progress"), output_index=0
        ),
        reply.text_event("response.content_part.added", part=reply.part("")),
    ]


def _closing(reply: Reply, text: str) -> list[bytes]:
    return [
        reply.text_event("response.output_text.done", text=text, logprobs=[]),
        reply.text_event("response.content_part.done", part=reply.part(text)),
        reply.event(
            "response.output_item.done",
            item=reply.message([reply.part(text)], "completed"),
            output_index=0,
        ),
    ]
