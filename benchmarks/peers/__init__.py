"""What benchmarks compare with. The samplers of other libraries have one file each, imported only when selected.

A maker takes a `Case` of `measuring.sampling` and returns a `Sampler`, or raises `UnableError`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from measuring.sampling import Case, Sampler

Maker = Callable[[Case], Sampler]

# What the command line calls them: the file, the maker in it, and what has to be installed.
PEERS = {
    "argmax": ("torch_samplers", "Argmax"),
    "llama.cpp": ("llama", "Chain"),
    "topk-first": ("torch_samplers", "TopKFirst"),
    "genai": ("genai", "Search"),
    "sort": ("torch_samplers", "Sort"),
    "compiled": ("torch_samplers", "CompiledSort"),
    "transformers": ("transformers_chain", "Chain"),
}


def maker(name: str) -> Maker:
    """The maker of a peer; ImportError where its library is not installed."""
    file, attribute = PEERS[name]
    return getattr(import_module(f"peers.{file}"), attribute)
