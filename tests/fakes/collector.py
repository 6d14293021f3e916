"""An OpenTelemetry collector on a real socket: takes OTLP over HTTP and keeps what it got."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from waiting import until


def plain(value):
    """An attribute's value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


class Collector:
    """``status`` is what it answers; with ``silent`` it answers nothing."""

    def __init__(self, status=200, *, silent=False, tls=None):
        self.tls = tls
        self.status = status
        self.silent = silent
        self.spans = []
        self.resources = []
        self.headers = []
        self.raw = b""
        self.url = ""

    async def _take(self, request):
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        body = await request.read()  # aiohttp has taken its gzip off
        self.raw += body
        if self.silent:
            await asyncio.sleep(60)
        if self.status == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes(resource.resource))
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
        return web.Response(status=self.status, headers={"Location": "/elsewhere"})

    @asynccontextmanager
    async def running(self):
        application = web.Application()
        application.router.add_post("/v1/traces", self._take)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls).start()
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def got(self, spans):
        """Wait for so many spans, by name."""
        await until(lambda: len(self.spans) >= spans)
        return {span.name: span for span in self.spans}


def attributes(owner):
    return {attribute.key: plain(attribute.value) for attribute in owner.attributes}
