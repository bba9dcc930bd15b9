"""The tokens with which models write what is missing between two texts, as code editors ask them to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# What a GGUF file calls them; the older keys of the first three are after them.
KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
    "padding": ("fim_pad_token_id",),
}
# How vocabularies spell them: those of Qwen, StarCoder and Granite, DeepSeek, CodeLlama, GLM.
_SPELLINGS = {
    "prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<PRE>", "<|code_prefix|>"),
    "suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<SUF>", "<|code_suffix|>"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<MID>", "<|code_middle|>"),
    "repository": ("<|repo_name|>", "<|fim_repo|>", "<reponame>", "<repo_name>"),
    "file": ("<|file_sep|>", "<file_sep>"),
    "padding": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
}


@dataclass(frozen=True)
class InfillTokens:
    """The ids of the tokens before the text that comes first, the one that comes last, and the one that is asked for; before
    the name of a repository and of a file, and the one that fills; None for those that the vocabulary has not."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None
    padding: int | None = None

    @property
    def ends(self) -> list[int]:
        """The tokens with which a model goes on to other files: what it was asked for has ended."""
        return [i for i in (self.repository, self.file, self.padding) if i is not None]


def find_infill_tokens(tokens: Sequence[str], added: Collection[int], named: Mapping[str, int]) -> InfillTokens | None:
    """Those of a vocabulary; None if it lacks one of the first three.

    added: the ids of tokens that are no pieces of words, among which those are that have a usual spelling. named: the ids that
    a file gives, by the names of `KEYS`.
    """
    of_spelling = {tokens[i]: i for i in added}
    found = dict(named)
    for name, spellings in _SPELLINGS.items():
        spelled = next((of_spelling[spelling] for spelling in spellings if spelling in of_spelling), None)
        if spelled is not None:
            found.setdefault(name, spelled)
    return InfillTokens(**found) if {"prefix", "suffix", "middle"} <= found.keys() else None
