"""Options shared by the verbs: the model, the prompt, and the fields of SamplingParams."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from decodestep import models
from decodestep._base.checks import Phrase, refuse, require
from decodestep._base.numa import set_numa
from decodestep._base.progress import progress_line
from decodestep._base.threads import use_threads
from decodestep.generation.drafts import Draft
from decodestep.generation.prompts import Prompt
from decodestep.models import Model, sampling_defaults
from decodestep.models.fetch import DEFAULT_MODEL
from decodestep.sampling.params import DEFAULTS, SAMPLERS, SamplingParams

MODEL_HELP = "a GGUF file, a folder of safetensors, or org/name of the Hugging Face Hub, org/name:Q4_K_M for a file there"
_DRAFTS = "auto, off, lookup, mtp, or a smaller model of the same vocabulary"
BYTE_ORDER_MARK = "\ufeff"  # with which some editors begin a file; "utf-8-sig" reads files without it
# Options for fields of SamplingParams, with its defaults: type, placeholder and help of each.
_NUMBERS: dict[str, tuple[type, str, str]] = {
    "max_new_tokens": (int, "N", "at most N new tokens"),
    "min_new_tokens": (int, "N", "no end token before N new tokens"),
    "temperature": (float, "T", ">= 0; 1 leaves the distribution, 0 is greedy"),
    "top_k": (int, "K", "keep the K most likely tokens; 0 keeps all"),
    "top_p": (float, "P", "in [0, 1]: keep the most likely tokens up to this total probability; 1 keeps all"),
    "min_p": (float, "P", "in [0, 1]: keep tokens of at least P times the largest probability; 0 keeps all"),
    "typical_p": (float, "P", "in (0, 1]: keep the most typical tokens up to this total probability; 1 keeps all"),
    "top_h": (float, "H", "in (0, 1]: keep the most likely tokens up to this share of the entropy; 1 keeps all"),
    "epsilon_cutoff": (float, "E", "in [0, 1): drop tokens of a probability below E; 0 keeps all"),
    "eta_cutoff": (float, "E", "in [0, 1): as epsilon-cutoff, with a limit that falls with the entropy; 0 keeps all"),
    "top_n_sigma": (float, "N", ">= 0: keep scores within N standard deviations of the largest; 0 keeps all"),
    "xtc_probability": (float, "P", "in [0, 1]: how often the most likely tokens are excluded; 0 is off"),
    "xtc_threshold": (float, "P", "in [0, 1]: the probability from which XTC excludes a token"),
    "repetition_penalty": (float, "R", "> 0: more than 1 makes tokens that occurred less likely; 1 is off"),
    "presence_penalty": (float, "R", "subtracted from the score of every generated token; 0 is off"),
    "frequency_penalty": (float, "R", "subtracted from a token's score for each time it was generated; 0 is off"),
    "dry_multiplier": (float, "R", ">= 0: penalty for continuing a repetition; 0 is off"),
    "no_repeat_ngram_size": (int, "N", "no sequence of N tokens occurs twice; 0 is off"),
    "max_time": (float, "SECONDS", "end after this many seconds"),
}
# By the names that other programs give them.
_ALIASES = {
    "max_new_tokens": ("-n", "--max-tokens"),
    "temperature": ("--temp",),
    "repetition_penalty": ("--repeat-penalty",),
}
_BEAMS: dict[str, tuple[type, str, str]] = {
    "num_beams": (int, "N", "beam search with N beams, without sampling; 1 is off"),
    "num_beam_groups": (int, "N", "diverse beam search with N groups of beams"),
    "diversity_penalty": (float, "R", "> 0 with groups: subtracted from the scores of tokens that earlier groups took"),
    "length_penalty": (float, "R", "of beams: > 0 prefers longer, < 0 shorter texts"),
}

INDEXER_TYPES_HELP = "which layers of a glm-dsa file have an indexer of their own, F or S for each, where it does not say it"


def add_model(parser: argparse.ArgumentParser) -> None:
    text = f"{MODEL_HELP} [%(default)s]"
    parser.add_argument("-m", "--model", default=DEFAULT_MODEL, metavar="NAME_OR_PATH", help=text)
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded, whichever it is."""
    add = parser.add_argument
    add("--threads", type=int, metavar="N", help="number of threads of the native kernels [DECODESTEP_THREADS, else all cores]")
    text = "how threads and weights lie on a machine of several NUMA nodes: distribute or isolate [as the system puts them]"
    add("--numa", metavar="HOW", help=text)
    dtypes = "auto, float32, bfloat16, int8, q8_0, q4_0, q2_k, q3_k or q4_k"
    add("--dtype", default="auto", metavar="DTYPE", help=f"type of the weights: {dtypes} [%(default)s]")
    add(
        "--form",
        "--attention",
        default="auto",
        metavar="FORM",
        help="form of grouped-query attention: auto, or mla (latent) [%(default)s]",
    )
    kept = "auto, bfloat16, float16 or int8"
    text = f"type of cached keys and values: {kept} [%(default)s]"
    add("--cache-dtype", "--kv-cache-dtype", default="auto", metavar="DTYPE", help=text)
    text = "type of the cached keys of an indexer: auto or int8 [%(default)s]"
    add("--index-cache-dtype", default="auto", metavar="DTYPE", help=text)
    add("--indexer-types", metavar="PATTERN", help=INDEXER_TYPES_HELP)
    add("--cache-bytes", type=int, metavar="N", help="memory for keys and values [a quarter of the machine's]")
    text = "keep the packed weights in a file beside the model, of about its size, which makes later starts faster"
    add("--packed-cache", action="store_true", help=text)
    add("--chat-template", metavar="FILE", help="file with a Jinja template that replaces the model's")


def add_named_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="model", help="the same as --model")
    add_model(parser)


def name_model(options: argparse.Namespace) -> None:
    """Moves the model that was named without --model to where `load` looks for it."""
    if options.name is not None:
        both = Phrase(f"{options.name} and --model {options.model}")
        require(options.model == DEFAULT_MODEL, options.verb, "model", "named once", both)
        options.model = options.name


def add_template_variables(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "whether a model that can think before it answers does so, for templates that read this [the template's choice]"
    add("--enable-thinking", action=argparse.BooleanOptionalAction, help=text)
    text = 'variables of the chat template, as a JSON object: \'{"reasoning_effort": "low"}\''
    add("--chat-template-kwargs", metavar="JSON", help=text)


def add_thinking_budget(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "tokens of reasoning after which it is ended; 0 ends it at once, -1 is no limit [%(default)s]"
    add("--reasoning-budget", type=int, default=-1, metavar="N", help=text)
    add("--reasoning-budget-message", metavar="TEXT", help="text that is put at the end of reasoning that is ended")


def with_thinking_budget(params: SamplingParams, options: argparse.Namespace) -> SamplingParams:
    """The params with the budget that the options name."""
    budget, message = options.reasoning_budget, options.reasoning_budget_message
    require(budget >= -1, options.verb, "reasoning-budget", "-1 or more", budget)
    return params if budget < 0 else params.replace(thinking_budget_tokens=budget, thinking_budget_message=message)


def template_variables(options: argparse.Namespace) -> dict[str, Any]:
    """The variables that the options give the chat template; {} without any."""
    text = options.chat_template_kwargs
    try:
        given = {} if text is None else json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        refuse(options.verb, "chat-template-kwargs", "a JSON object", text)
    thinking = options.enable_thinking
    return {**given, **({} if thinking is None else {"enable_thinking": thinking})}


def add_draft(parser: argparse.ArgumentParser) -> None:
    text = f"how tokens are drafted ahead, which changes the time and never the text: {_DRAFTS} [%(default)s]"
    parser.add_argument("--draft", type=_named_draft, default="auto", metavar="KIND_OR_MODEL", help=text)


def _named_draft(text: str) -> str:
    """The value of --draft, without a number: in llama.cpp it is the length of drafts."""
    if not text or text.lstrip("+-").isdecimal():
        raise argparse.ArgumentTypeError(f"must be {_DRAFTS}; got {text!r}: no length, as the one that pays is found by itself")
    return text


def load_draft(options: argparse.Namespace) -> Draft:
    """What --draft names, as `generate` takes it; a smaller model is loaded."""
    named = options.draft
    if named in ("auto", "lookup", "mtp"):
        return str(named)
    if named == "off":
        return None
    with progress_line(after=1.0) as show:
        return models.load(
            named, threads=options.threads, progress=lambda done, layers: show(f"loading {named}: {done} of {layers} layers")
        )


def add_prompt(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--system", metavar="TEXT", help="a system message before the prompt")
    add("--raw", action="store_true", help="pass the prompt to the model unchanged, without the chat template")
    add_template_variables(parser)


def add_params(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """defaults: those of the verb, where they differ from SamplingParams'; `build_params` takes the same."""
    group = parser.add_argument_group(
        "sampling",
        "Fields of decodestep.SamplingParams, with their defaults in brackets.",
    )
    add = group.add_argument
    add("--greedy", action="store_true", help="take the most likely token at every step")
    add("--seed", type=int, metavar="S", help="in [0, 2^64); the same seed gives the same text [none: a new one each time]")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    _add_numbers(group, _NUMBERS, defaults)
    add_sampling_defaults(group)
    text = "DRY: a text that ends a repetition, in place of the usual ones; may be repeated, and none is no text"
    usual = '["\\n", ":", "\\"" and "*"]'
    add("--dry-sequence-breaker", action="append", metavar="TEXT", help=f"{text} {usual}")
    add("--json-schema", metavar="FILE", help="constrain the text to JSON of the schema in this file")
    add("--regex", metavar="EXPRESSION", help="constrain the text to match this regular expression")
    add("--grammar", metavar="FILE", help="constrain the text to the grammar in this file: Lark or GBNF")
    add("--samplers", metavar="NAME,NAME", help=f"run only these, in this order: {', '.join(SAMPLERS)}")


def add_sampling_defaults(parser: argparse._ActionsContainer) -> None:
    text = "what is left out of the model's sampling: the model's own values where it has some, or none of them [%(default)s]"
    kinds = ("model", "none")
    parser.add_argument("--sampling-defaults", default="model", choices=kinds, metavar="KIND", help=f"model or none: {text}")


def add_beams(parser: argparse.ArgumentParser) -> None:
    _add_numbers(parser.add_argument_group("beam search"), _BEAMS, {})


def _add_numbers(group: argparse._ArgumentGroup, numbers: dict[str, tuple[type, str, str]], defaults: dict[str, Any]) -> None:
    for name, (kind, metavar, text) in numbers.items():
        default = defaults.get(name, DEFAULTS[name])
        shown = "none" if default is None else f"the model's, else {default}" if name in sampling_defaults.FIELDS else default
        names = f"--{name.replace('_', '-')}", *_ALIASES.get(name, ())
        group.add_argument(*names, type=kind, metavar=metavar, help=f"{text} [{shown}]")


def with_model_defaults(params: SamplingParams, options: argparse.Namespace, model: Model) -> SamplingParams:
    """The params with the model's own values for what the options leave out."""
    if options.sampling_defaults == "none":
        return params
    given = {name for name in _NUMBERS if getattr(options, name) is not None}
    if options.greedy or params.num_beams > 1:
        given.add("do_sample")
    return sampling_defaults.with_defaults(params, given, model.default_params)


def add_ban(parser: argparse.ArgumentParser) -> None:
    text = "never generate this text's own tokens, with or without a leading space; may be repeated"
    parser.add_argument("--ban", action="append", default=[], metavar="TEXT", help=text)


def with_bans(params: SamplingParams, options: argparse.Namespace, model: Model) -> SamplingParams:
    """The params with the tokens of each --ban added to bad_words_ids."""
    for text in options.ban:
        require(bool(text), options.verb, "ban", "a text", text)
        require(_is_text(text), options.verb, "ban", "text that can be encoded as UTF-8", text)
    banned = {tuple(model.tokenizer.encode_within(form)) for text in options.ban for form in (text, f" {text}")}
    return replace(params, bad_words_ids=(*params.bad_words_ids, *sorted(banned))) if banned else params


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: what a command line holds beside UTF-8 comes as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def load(options: argparse.Namespace) -> Model:
    """The model; a terminal shows the layers that are loaded, from a second on."""
    return load_named(options.model, options, lambda done, layers: None)


def load_named(model: str | Path, options: argparse.Namespace, progress: Callable[[int, int], object]) -> Model:
    """The model of this name or path, as `load`. progress: as for `models.load`."""
    with progress_line(after=1.0) as show:

        def tell(done: int, layers: int) -> None:
            progress(done, layers)
            show(f"loading: {done} of {layers} layers")

        if options.numa is not None:
            with use_threads(options.threads):
                set_numa(options.numa)
        return models.load(
            model,
            dtype=options.dtype,
            form=options.form,
            cache_dtype=options.cache_dtype,
            index_cache_dtype=options.index_cache_dtype,
            indexer_types=options.indexer_types,
            threads=options.threads,
            cache_bytes=options.cache_bytes,
            packed_cache=options.packed_cache,
            chat_template=read_option_file(options, "chat-template"),
            progress=tell,
        )


def read_option_file(options: argparse.Namespace, name: str) -> str | None:
    """The text of the file that option `name` names; None where it is not given, or the verb has none of that name."""
    path = getattr(options, name.replace("-", "_"), None)
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(options.verb, name, "a file of UTF-8", Phrase(f"{path}, {error.reason} at byte {error.start}"))


def require_writable(path: str) -> None:
    """Raises OSError, before the work whose result goes there, if a file cannot be written; what is there stays as it is."""
    if Path(path).is_fifo():
        return  # opening it would wait for its reader, who would read that it has ended
    new = not os.path.lexists(path)
    with open(path, "a"):
        pass
    if new:
        os.unlink(path)


def write_text(path: str, text: str) -> None:
    """Writes a file of UTF-8. An OSError names the file also where writing fails and not opening, as on a full disk."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename = error.filename or path
        raise


def build_params(options: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """defaults: as for `add_params`."""
    numbers = {name: getattr(options, name, None) for name in (*_NUMBERS, *_BEAMS)}  # some verbs have no beams
    given = {name: value for name, value in numbers.items() if value is not None}
    breakers = options.dry_sequence_breaker
    return SamplingParams(
        **(defaults | given),
        do_sample=not options.greedy and given.get("num_beams", 1) <= 1,
        seed=options.seed,
        stop_strings=tuple(options.stop),
        dry_sequence_breakers=None if breakers is None else tuple(text for text in breakers if text != "none"),
        json_schema=read_option_file(options, "json-schema"),
        regex=options.regex,
        grammar=read_option_file(options, "grammar"),
        samplers=None if options.samplers is None else tuple(name.strip() for name in options.samplers.split(",")),
    )


def read_prompt(options: argparse.Namespace) -> Prompt:
    """The prompt for `generate`: a conversation, or with --raw the text itself."""
    if options.prompt == "-" and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")  # as in arguments: what is not UTF-8 is refused as a prompt
    text: str = sys.stdin.read().removeprefix(BYTE_ORDER_MARK) if options.prompt == "-" else options.prompt
    if not text.strip() and not (options.raw and text):
        refuse(options.verb, "prompt", "at least one token long", Phrase("an empty prompt"))
    if options.raw:
        require(options.system is None, options.verb, "system", "left out with --raw", options.system)
        ok = options.enable_thinking is None and options.chat_template_kwargs is None
        require(ok, options.verb, "raw", "left out with variables of the chat template", Phrase("both"))
        return text
    system = [{"role": "system", "content": options.system}] if options.system is not None else []
    messages = [*system, {"role": "user", "content": text}]
    return {"messages": messages, "chat_template_kwargs": template_variables(options)}
