"""A server's metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from decodestep.generation.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("decodestep_requests", "Requests answered", ("route", "status"), registry=registry)
        self.prompt_tokens = Counter("decodestep_prompt_tokens", "Prompt tokens", registry=registry)
        self.tokens = Counter("decodestep_completion_tokens", "Completion tokens", registry=registry)
        self.drafted_tokens = Counter("decodestep_drafted_tokens", "Tokens drafted ahead", registry=registry)
        self.accepted_tokens = Counter(
            "decodestep_accepted_tokens", "Drafted tokens that became part of a text", registry=registry
        )
        self.ended = Counter("decodestep_completions", "Completions ended", ("reason",), registry=registry)
        self.first_token_seconds = Histogram(
            "decodestep_first_token_seconds", "Time to first token", buckets=_SECONDS, registry=registry
        )
        self.request_seconds = Histogram(
            "decodestep_request_seconds", "Time to last token", buckets=_SECONDS, registry=registry
        )
        cache = engine.model.cache
        for name, text, value in (
            ("running", "Completions that hold pages of the cache", lambda: engine.running),
            ("waiting", "Completions that wait for pages", lambda: max(0, engine.live - engine.running)),
            ("passes", "Forward passes so far", lambda: engine.passes),
            ("failed_passes", "Forward passes that raised", lambda: engine.failures),
            ("cache_pages", "Pages of the cache, of 16 tokens each", lambda: cache.pages),
            ("cache_pages_held", "Pages in use by completions", lambda: cache.held),
            ("cache_pages_kept", "Unused pages kept for prefix reuse", lambda: cache.kept),
        ):
            Gauge(f"decodestep_{name}", text, registry=registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
