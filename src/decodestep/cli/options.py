"""The options that verbs share: the model, the prompt, and the fields of SamplingParams."""

from __future__ import annotations

import argparse
import secrets
import sys

import decodestep as ds
from decodestep.generation.generate import Prompt
from decodestep.models.fetch import DEFAULT_MODEL
from decodestep.sampling.params import SAMPLERS

# Options that are fields of SamplingParams: what follows the name, and how it is read.
_NUMBERS: dict[str, tuple[type, str, str]] = {
    "max_new_tokens": (int, "N", "how many tokens at most"),
    "min_new_tokens": (int, "N", "no end before so many"),
    "temperature": (float, "T", ">= 0; 0 is greedy"),
    "top_k": (int, "K", "keep the K most likely; 0 keeps all"),
    "top_p": (float, "P", "in [0, 1]: keep the most likely up to this mass; 1 keeps all"),
    "min_p": (float, "P", "in [0, 1]: keep at least this share of the largest probability"),
    "typical_p": (float, "P", "in (0, 1]: keep the tokens of typical surprise up to this mass"),
    "top_h": (float, "H", "in (0, 1]: keep this share of the entropy"),
    "epsilon_cutoff": (float, "E", "in [0, 1): drop probabilities below"),
    "eta_cutoff": (float, "E", "in [0, 1): the same, falling with the entropy"),
    "top_n_sigma": (float, "N", ">= 0: keep scores within N standard deviations of the largest; 0 keeps all"),
    "xtc_probability": (float, "P", "in [0, 1]: how often the top choices are excluded"),
    "xtc_threshold": (float, "P", "in [0, 1]: what a top choice is"),
    "repetition_penalty": (float, "R", "> 0; 1 changes nothing"),
    "presence_penalty": (float, "R", "off every generated token"),
    "frequency_penalty": (float, "R", "off a generated token for each occurrence"),
    "dry_multiplier": (float, "R", ">= 0: penalty for continuing a repetition; 0 is off"),
    "no_repeat_ngram_size": (int, "N", "no sequence of N tokens twice; 0 is off"),
    "max_time": (float, "SECONDS", "end after this long"),
    "logprobs": (int, "N", "report log-probabilities, and the N most likely tokens, in the JSON object"),
    "num_beams": (int, "N", "beam search with N beams"),
    "num_beam_groups": (int, "N", "diverse beam search with N groups"),
    "diversity_penalty": (float, "R", "> 0, with groups: off what earlier groups picked"),
    "length_penalty": (float, "R", "beams: > 0 prefers longer, < 0 shorter text"),
}
# What a plain call uses; SmolLM2 is small, and the whole distribution's tail does it no good.
_DEFAULTS = {"max_new_tokens": 256, "temperature": 0.7, "top_k": 50, "top_p": 0.9}


def add_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, metavar="NAME_OR_PATH", help="a GGUF file of the Llama family [%(default)s]")
    add("--threads", type=int, metavar="N", help="of the native kernels [DECODESTEP_THREADS, else all cores]")
    add("--dtype", default="auto", help="how weights are multiplied: auto, float32, bfloat16 or int8 [%(default)s]")


def add_prompt(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--system", metavar="TEXT", help="a system message before the prompt")
    add("--raw", action="store_true", help="give the model the prompt as it stands, without the chat template")


def add_params(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--greedy", action="store_true", help="take the most likely token at every step")
    add("--seed", type=int, metavar="S", help="in [0, 2^64); the same seed gives the same text [chosen at random]")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times")
    for name, (kind, metavar, text) in _NUMBERS.items():
        note = f" [{_DEFAULTS[name]}]" if name in _DEFAULTS else ""
        add(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text + note)
    add("--samplers", metavar="NAME,NAME", help=f"run these alone, in this order: {', '.join(SAMPLERS)}")


def load(options: argparse.Namespace) -> ds.Model:
    return ds.load(options.model, dtype=options.dtype, threads=options.threads)


def params_of(options: argparse.Namespace) -> ds.SamplingParams:
    samplers = None if options.samplers is None else tuple(name.strip() for name in options.samplers.split(","))
    given = {name: getattr(options, name) for name in _NUMBERS if getattr(options, name) is not None}
    usual = {name: value for name, value in _DEFAULTS.items() if samplers is None or name in (*samplers, "max_new_tokens")}
    seed = secrets.randbits(32) if options.seed is None else options.seed
    return ds.SamplingParams(
        **{**usual, **given},
        do_sample=not (options.greedy or (given.get("num_beams", 1) > 1)),
        seed=seed,
        stop_strings=tuple(options.stop),
        samplers=samplers,
    )


def prompt_of(options: argparse.Namespace) -> Prompt:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text.strip() and not (options.raw and text):
        raise ValueError(f"{options.verb}: prompt must be at least one token long; got an empty prompt")
    if options.raw:
        return str(text)
    system = [{"role": "system", "content": options.system}] if options.system is not None else []
    return [*system, {"role": "user", "content": text}]
