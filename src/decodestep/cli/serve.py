"""``decodestep serve``: an HTTP server for one model or several."""

from __future__ import annotations

import argparse
import logging
import sys
from concurrent.futures import Future
from ipaddress import ip_address
from typing import TYPE_CHECKING

from decodestep._base.checks import refuse, require
from decodestep._base.extras import extra
from decodestep.cli.listening import allow_files, listen, new_uvicorn_server, say
from decodestep.cli.model_sources import MODELS_HELP, find_sources
from decodestep.cli.options import (
    add_draft,
    add_loading,
    add_sampling_defaults,
    add_thinking_budget,
    load_draft,
    read_option_file,
    with_thinking_budget,
)
from decodestep.errors import EngineClosedError
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    from decodestep.serving.served_models import ModelUse

_GRACE = 10.0  # seconds for completions to finish after SIGTERM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", metavar="model", help="the same as --model")
    add("-m", "--model", action="append", default=[], dest="models", metavar="[NAME=]NAME_OR_PATH", help=MODELS_HELP)
    add_loading(parser)
    text = "models that are loaded at once [as many as memory has room for]"
    add("--max-models", "--models-max", type=int, metavar="N", help=text)
    text = "unload a model that nobody has used for so long [never]"
    add("--unload-after", "--sleep-idle-seconds", type=float, metavar="SECONDS", help=text)
    add("--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0 for all networks [%(default)s]")
    add("--port", type=int, default=8080, help="0 for a free one [%(default)s]")
    text = "completions that run together, of each model [%(default)s]"
    add("--max-rows", "--parallel", type=int, default=64, metavar="N", help=text)
    text = "completions that may wait, for each model; others get 429 [%(default)s]"
    add("--max-waiting", "--max-queue", type=int, default=256, metavar="N", help=text)
    add("--api-key-file", metavar="FILE", help="file of keys, one per line; requests must send one of them")
    text = (
        "name by which requests may call the server, as a proxy does; * for any [those without a dot, on loopback without keys]"
    )
    add("--allowed-host", action="append", default=[], metavar="NAME", help=text)
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help="origin whose pages may call the API; * for all")
    add_sampling_defaults(parser)
    add_thinking_budget(parser)
    add_draft(parser)
    text = "ignore fields of requests that are not known, as other servers do, in place of refusing them by name"
    add("--ignore-unknown-fields", action="store_true", help=text)
    add("--log-prompts", action="store_true", help="write requests and answers to the log")
    add("--grace", type=float, default=_GRACE, metavar="SECONDS", help="time for rows to finish after SIGTERM [%(default)s]")


def run(options: argparse.Namespace) -> int:
    with extra("serve"):
        import uvicorn  # noqa: F401 - a missing package is reported before a model is loaded

        from decodestep.serving.http import Server
        from decodestep.serving.served_models import ServedModels
    keys = _keys(options)
    _check(options)
    sources = find_sources(options)
    allow_files()
    listening = listen(options.host, options.port)  # before a model is loaded, so that a port in use is reported at once
    host, port = listening.getsockname()[:2]
    shown, with_keys = f"[{host}]" if ":" in host else host, "with an API key" if keys else "without API keys"
    address = f"listening on http://{shown}:{port} {with_keys}: the chat page at /, the APIs of OpenAI and Anthropic at /v1"
    models = ServedModels(
        sources,
        max_rows=options.max_rows,
        max_waiting=options.max_waiting,
        draft=load_draft(options),
        default_params=None if options.sampling_defaults == "model" else SamplingParams(),
        thinking=with_thinking_budget(SamplingParams(), options),
        most_loaded=options.max_models,
        unload_after=options.unload_after,
    )
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    sys.setswitchinterval(5e-4)  # the engines' threads must not wait 5 ms for the one that writes to clients
    server = Server(
        models,
        keys=keys,
        hosts=_hosts(options, host, keys),
        origins=options.cors_origin,
        log_prompts=options.log_prompts,
        ignore_unknown_fields=options.ignore_unknown_fields,
    )
    http = new_uvicorn_server(server, options.grace)
    failures: list[BaseException] = []

    def loaded(loading: Future[ModelUse]) -> None:
        """Tells that the only model answers from now on, or ends the server."""
        error = loading.exception()
        if error is None:
            say(address)
        elif not isinstance(error, EngineClosedError):
            failures.append(error.__cause__ or error)
            http.should_exit = True

    if server.loading is not None:
        server.loading.add_done_callback(loaded)
    else:
        say(f"{len(sources)} models, each loaded when it is asked for: {', '.join(sources)}")
        say(address)
    try:
        http.run(sockets=[listening])
    finally:
        server.close()
    if failures:
        raise failures[0]
    say("stopped")
    return 0


def _check(options: argparse.Namespace) -> None:
    require(0 <= options.port < 2**16, "serve", "port", "in [0, 65535]", options.port)
    require(options.max_rows >= 1, "serve", "max-rows", ">= 1", options.max_rows)
    require(options.max_waiting >= 0, "serve", "max-waiting", ">= 0", options.max_waiting)
    require(options.max_models is None or options.max_models >= 1, "serve", "max-models", ">= 1", options.max_models)
    require(options.unload_after is None or options.unload_after >= 0, "serve", "unload-after", ">= 0", options.unload_after)
    require(options.grace >= 0, "serve", "grace", ">= 0", options.grace)
    for origin in options.cors_origin:
        require(_is_origin(origin), "serve", "cors-origin", "*, null, or an origin such as https://example.org:8000", origin)
    for name in options.allowed_host:
        require(_is_allowed_host(name), "serve", "allowed-host", "*, or a name without a port such as example.org", name)


def _hosts(options: argparse.Namespace, address: str, keys: list[str]) -> list[str] | None:
    """The names by which requests may call the server; None for any.

    On loopback without keys, they are the protection from pages whose own name a DNS server leads to this machine.
    """
    names = [*options.allowed_host, options.host]
    closed = bool(options.allowed_host) or (ip_address(address).is_loopback and not keys)
    return names if closed and "*" not in names else None


def _is_allowed_host(text: str) -> bool:
    return text == "*" or bool(text and not set("/:@* ") & set(text))


def _is_origin(text: str) -> bool:
    """Whether browsers may send it as Origin: a path, or a slash at the end, would never match."""
    scheme, _, host = text.partition("://")
    return text in ("*", "null") or bool(scheme and host and not set("/?#@ ") & set(host))


def _keys(options: argparse.Namespace) -> list[str]:
    text = read_option_file(options, "api-key-file")
    if text is None:
        return []
    keys = [line.strip() for line in text.splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        refuse("serve", "api-key-file", "a file with one key per line", options.api_key_file)
    return keys
