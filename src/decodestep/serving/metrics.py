"""What Prometheus reads of a server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from decodestep.serving.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("decodestep_requests", "Requests answered", ("route", "status"), registry=registry)
        self.prompt_tokens = Counter("decodestep_prompt_tokens", "Tokens of prompts", registry=registry)
        self.tokens = Counter("decodestep_completion_tokens", "Tokens drawn", registry=registry)
        self.ended = Counter("decodestep_completions", "Completions ended", ("reason",), registry=registry)
        self.first = Histogram("decodestep_first_token_seconds", "To the first token", buckets=_SECONDS, registry=registry)
        self.whole = Histogram("decodestep_request_seconds", "To the last token", buckets=_SECONDS, registry=registry)
        cache = engine.model.cache
        for name, text, value in (
            ("running", "Completions that have pages of the cache", lambda: engine.running),
            ("waiting", "Completions that wait for pages", lambda: max(0, engine.live - engine.running)),
            ("passes", "Forward passes since the start", lambda: engine.passes),
            ("failed_passes", "Forward passes that raised", lambda: engine.failures),
            ("cache_pages", "Pages of 16 tokens that the cache has", lambda: cache.pages),
            ("cache_pages_held", "Pages that completions hold", lambda: cache.held),
            ("cache_pages_kept", "Pages kept for prompts that begin alike", lambda: cache.kept),
        ):
            Gauge(f"decodestep_{name}", text, registry=registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
