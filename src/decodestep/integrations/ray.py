"""Ray Data: generates a text for each prompt of a dataset, with one model per actor.

Usage:

    from decodestep.integrations.ray import Generate
    actors = ray.data.ActorPoolStrategy(size=4)
    dataset.map_batches(Generate, fn_constructor_kwargs={"model": "model.gguf"}, compute=actors, num_cpus=8, batch_size=32)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from decodestep._base.checks import Phrase, is_int, refuse, require, require_seed
from decodestep._base.extras import extra
from decodestep.generation import Completion, generate
from decodestep.integrations.host_params import seed_from_name
from decodestep.models import Model, load
from decodestep.sampling.field_aliases import rename_fields
from decodestep.sampling.params import DEFAULTS, SamplingParams

with extra("ray"):
    import ray

_OP = "Generate"
_NEW_COLUMNS = ("completion", "completion_ids", "finish_reason", "completion_seed", "error")
_IN_JSON = ("logit_bias", "sequence_bias", "exponential_decay_length_penalty")  # fields whose values no column holds


class Generate:
    """A callable class for `Dataset.map_batches`: adds the generated text for each row's prompt.

        for every row:  params = `params`, overridden by the columns named like its fields
                        text = generate(model, prompt, params with seed = row_seed(seed, key), where the row has none)

    Called with a batch in the format "numpy". Returns its columns, in which lists of prompts and fields remain lists, and:
    completion, the text; completion_ids; finish_reason, as in `Completion`, "error" for a row that failed; completion_seed, 0
    for a greedy row; error, why a row failed, else "".
    A row that fails does not affect others. A row's text depends only on its prompt, params, key and `seed`, not on blocks,
    batches, actors or retries.

    Args:
        model: what `load` takes; None for the default model.
        dtype: as in `load`. Every actor loads the model once.
        params: a mapping of fields of `SamplingParams`, for all rows. A column with the name of a field overrides it if the
            row's value is not null. A column holds neither mappings of ids nor pairs of an integer and a fraction, so that of
            some fields it holds JSON: json_schema; logit_bias, {"5": 1.5}; sequence_bias, [[[5, 6], -1.5]];
            exponential_decay_length_penalty, [10, 1.05]. num_return_sequences and num_beams must be 1.
        prompt: the column of prompts: strings, token ids, or conversations, as `generate` takes them.
        key: the column of the rows' keys, integers or strings, which determine the seeds. Rows with equal keys share their
            noise.
        seed: an integer in [0, 2^64) that is combined with every key.
        threads: of an actor; None for the number of CPUs that Ray assigned to it, at least one.

    Raises:
        ValueError: for a batch in another format, without the columns of prompts or keys, or with one of the new names.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        dtype: str = "auto",
        params: Mapping[str, Any] | None = None,
        prompt: str = "prompt",
        key: str = "key",
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        require_seed(_OP, seed)
        require(params is None or isinstance(params, Mapping), _OP, "params", "a mapping of fields of SamplingParams", params)
        # By the names that columns have.
        self._params = rename_fields(params or {}, DEFAULTS.keys())
        self._prompt, self._key, self._seed = prompt, key, seed
        SamplingParams(**self._params)
        threads = _assigned_cpus() if threads is None else threads
        self._model: Model = load(*[] if model is None else [model], dtype=dtype, threads=threads)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        require(
            isinstance(batch, dict), _OP, "batch", 'a dict of arrays, of batch_format="numpy"', Phrase(type(batch).__name__)
        )
        for name in (self._prompt, self._key):
            require(name in batch, _OP, "batch", f"one with a column {name!r}", Phrase(", ".join(batch)))
        taken = [name for name in _NEW_COLUMNS if name in batch]
        require(not taken, _OP, "batch", f"one without columns {', '.join(_NEW_COLUMNS)}", Phrase(", ".join(taken)))
        count = len(batch[self._prompt])
        results: list[Completion | Exception | None] = [None] * count
        asked: list[tuple[int, Any, SamplingParams]] = []
        for i in range(count):
            try:
                asked.append((i, _read_prompt(batch[self._prompt][i]), self._build_params(batch, i)))
            except Exception as error:
                results[i] = error
        self._run(asked, results)
        seeds = {i: params.seed or 0 for i, _, params in asked}
        lists = {name: _as_lists(batch[name]) for name in {self._prompt, *DEFAULTS} & batch.keys()}
        return {**batch, **lists, **_columns(results, [seeds.get(i, 0) for i in range(count)])}

    def _build_params(self, batch: dict[str, np.ndarray], i: int) -> SamplingParams:
        given = dict(self._params)
        for name in DEFAULTS.keys() & batch.keys():
            value = _plain(batch[name][i], DEFAULTS[name])
            if value is not None:
                given[name] = _from_json(name, value) if name in _IN_JSON else value
        params = SamplingParams(**given)
        require(
            params.num_beams == 1 == params.num_return_sequences,
            _OP,
            "params",
            "of one sample without beams",
            Phrase("several"),
        )
        if params.greedy or params.seed is not None:
            return params
        return SamplingParams(**{**given, "seed": row_seed(self._seed, _plain(batch[self._key][i], None))})

    def _run(self, asked: list[tuple[int, Any, SamplingParams]], results: list[Completion | Exception | None]) -> None:
        """Fills in the results. `generate` refuses a call as a whole, before any work; bisection finds the invalid rows."""
        if not asked:
            return
        try:
            made = generate(self._model, [prompt for _, prompt, _ in asked], [params for _, _, params in asked])
        except Exception as error:
            if len(asked) == 1:
                results[asked[0][0]] = error
            else:
                self._run(asked[: len(asked) // 2], results)
                self._run(asked[len(asked) // 2 :], results)
            return
        for (i, _, _), completion in zip(asked, made, strict=True):
            results[i] = completion


def row_seed(seed: int, key: int | str) -> int:
    """The seed of a row: `seed_from_name` "<seed> i <key>" for an integer, "<seed> s <key>" for a string.

    Raises:
        ValueError: for a key that is neither.
    """
    if not (is_int(key) or isinstance(key, str)):
        refuse(_OP, "key", "an integer or a string", key)
    return seed_from_name(f"{seed} {'s' if isinstance(key, str) else 'i'} {key}")


def _assigned_cpus() -> int:
    """The number of CPUs of the current actor; 1 outside an actor."""
    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return 1
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))


def _plain(value: Any, default: Any) -> Any:
    """A cell as a Python value; None for a null. A column of integers with nulls arrives as floats: ValueError if that may have
    rounded an integer."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float) and math.isnan(value):
        return None
    whole = isinstance(value, float) and not isinstance(default, float) and value.is_integer()
    if whole:
        require(abs(value) < 2**53, _OP, "batch", "of integers below 2^53 in a column with nulls, which holds floats", value)
        return int(value)
    return value


def _from_json(name: str, value: Any) -> Any:
    """The field that a text of JSON stands for, in the form that it has in a request to a server."""
    try:
        return getattr(SamplingParams.from_openai({name: json.loads(value)}), name)
    except (TypeError, ValueError):
        refuse(_OP, name, "JSON of the field in a column", value)


def _as_lists(column: np.ndarray) -> np.ndarray:
    """A column with its lists as lists, or without a type if all its cells are null.

    Ray would convert lists of numbers to a tensor, which it cannot concatenate with a block that contains a null. And it hands
    over nulls alone as floats, also of a column of lists, with which it cannot concatenate them either.
    """
    if column.dtype.kind == "f" and np.isnan(column).all():
        return np.full(len(column), None)
    if column.ndim == 1 and column.dtype != object:
        return column
    made = np.empty(len(column), object)
    made[:] = [cell.tolist() if isinstance(cell, np.ndarray) else cell for cell in column]
    return made


def _read_prompt(cell: object) -> Any:
    plain = cell.tolist() if hasattr(cell, "tolist") else cell
    if not isinstance(plain, (str, list)) or not plain:
        refuse(_OP, "prompt", "a non-empty text, list of token ids or conversation", plain)
    return plain


def _columns(results: list[Any], seeds: list[int]) -> dict[str, Any]:
    failed = [result if isinstance(result, Exception) else result.error for result in results]
    done = [None if isinstance(result, Exception) else result for result in results]
    ids = np.empty(len(results), object)
    ids[:] = [np.array(each.token_ids if each else [], np.int64) for each in done]
    return {
        "completion": np.array([each.text if each else "" for each in done], object),
        "completion_ids": ids,
        "finish_reason": np.array([each.finish_reason if each else "error" for each in done], object),
        "completion_seed": np.array(seeds, np.uint64),
        "error": np.array([f"{type(error).__name__}: {error}" if error else "" for error in failed], object),
    }
