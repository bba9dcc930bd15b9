"""The `tokenizers` package's engines that split a text into the tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tokenizers import Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from decodestep.errors import ModelError
from decodestep.tokenizers.pre_tokenizers import COMPOSED, PRE_TOKENIZERS
from decodestep.tokenizers.vocabulary import MAX_TOTAL

_LONG = 2**14  # characters of a text that is encoded without the GIL


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Converts exceptions of the `tokenizers` package, and its panics on inconsistent files, to ModelError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelError(f"{what}: {str(error)[:200]}") from error


def encode(engine: Engine, text: str) -> list[int]:
    """The ids of a text. A long one is encoded as a batch, since `encode` holds the GIL until it is done, which
    stops every thread; a short one is not, since after a batch the package prints a warning in every process that is forked."""
    text.encode()
    with engine_errors("the tokenizer cannot read this text"):
        if len(text) <= _LONG:
            return list(engine.encode(text, add_special_tokens=False).ids)
        [found] = engine.encode_batch_fast([text], add_special_tokens=False)
        return list(found.ids)


def byte_level_engine(ids: dict[str, int], merges: list[tuple[str, str]], pre: str, *, whole_words: bool) -> Engine:
    """Byte-level BPE with a pre-tokenizer by its name. whole_words: whether a word that is a token is taken as it is."""
    engine = Engine(BPE(ids, merges, ignore_merges=whole_words))
    if pre in COMPOSED:
        engine.normalizer = NFC()
    splits = [Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre]]
    engine.pre_tokenizer = Steps([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    return engine


def merges_of(tokens: Iterable[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every cut of every token into two tokens, in the order of the tokens."""
    merges: list[tuple[str, str]] = []
    total = 0
    for token in tokens:
        pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        cuts = [(left, right) for left, right in pairs if left in ids and right in ids]
        total += len(cuts) * len(token)
        if total > MAX_TOTAL:
            raise ModelError(f"the tokenizer's merges have more than {MAX_TOTAL} characters")
        merges += cuts
    return merges
