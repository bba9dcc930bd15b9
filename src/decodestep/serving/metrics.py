"""A server's metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from decodestep.serving.served_models import ServedModel, ServedModels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# Of a model that is loaded; 0 of one that is not.
_GAUGES: dict[str, tuple[str, Callable[[ServedModel], float]]] = {
    "model_loaded": ("Whether the model is loaded", lambda served: 1),
    "running": ("Completions that hold pages of the cache", lambda served: served.engine.running),
    "waiting": ("Completions that wait for pages", lambda served: max(0, served.engine.live - served.engine.running)),
    "passes": ("Forward passes since the model was loaded", lambda served: served.engine.passes),
    "failed_passes": ("Forward passes that raised, likewise", lambda served: served.engine.failures),
    "cache_pages": ("Pages of the cache, of 16 tokens each", lambda served: served.model.cache.pages),
    "cache_pages_held": ("Pages in use by completions", lambda served: served.model.cache.held),
    "cache_pages_kept": ("Unused pages kept for prefix reuse", lambda served: served.model.cache.kept),
    "cache_states": ("Recurrent states that the cache has room for", lambda served: _states(served, "count")),
    "cache_snapshots": ("Those kept for prefix reuse", lambda served: _states(served, "snapshots")),
}


class Metrics:
    """The metrics of one server, in their own registry; but for `requests`, by the names of its models."""

    def __init__(self, models: ServedModels) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("decodestep_requests", "Requests answered", ("route", "status"), registry=registry)
        by_model = ("model",)
        self.prompt_tokens = Counter("decodestep_prompt_tokens", "Prompt tokens", by_model, registry=registry)
        self.tokens = Counter("decodestep_completion_tokens", "Completion tokens", by_model, registry=registry)
        self.drafted_tokens = Counter("decodestep_drafted_tokens", "Tokens drafted ahead", by_model, registry=registry)
        self.accepted_tokens = Counter(
            "decodestep_accepted_tokens", "Drafted tokens that became part of a text", by_model, registry=registry
        )
        self.ended = Counter("decodestep_completions", "Completions ended", ("model", "reason"), registry=registry)
        self.first_token_seconds = Histogram(
            "decodestep_first_token_seconds", "Time to first token", by_model, buckets=_SECONDS, registry=registry
        )
        self.request_seconds = Histogram(
            "decodestep_request_seconds", "Time to last token", by_model, buckets=_SECONDS, registry=registry
        )
        counts = (self.prompt_tokens, self.tokens, self.drafted_tokens, self.accepted_tokens)
        for metric in (*counts, self.first_token_seconds, self.request_seconds):
            for model in models.names:
                metric.labels(model)  # which begins at 0, and not with the first request
        for name, (text, value) in _GAUGES.items():
            gauge = Gauge(f"decodestep_{name}", text, by_model, registry=registry)
            for model in models.names:
                gauge.labels(model).set_function(partial(_value, models, model, value))

    def text(self) -> bytes:
        return generate_latest(self._registry)


def _states(served: ServedModel, name: str) -> int:
    rows = served.model.cache.rows
    return 0 if rows is None else int(getattr(rows, name))


def _value(models: ServedModels, name: str, value: Callable[[ServedModel], float]) -> float:
    served = models.loaded(name)
    return 0 if served is None else value(served)
