"""The models of a server, each with an engine of its own: loaded when first asked for, unloaded to make room or when idle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decodestep._base.checks import describe
from decodestep._base.machine_limits import available_memory
from decodestep._base.memory import trim_heap
from decodestep.errors import EngineClosedError, ModelError, QueueFullError, RequestError
from decodestep.generation.drafts import Draft
from decodestep.generation.engine import Deliver, Engine
from decodestep.sampling.params import SamplingParams

if TYPE_CHECKING:
    from decodestep.models import Model

_LOG = logging.getLogger("decodestep.serving.models")
_BESIDE = 2**29  # bytes that a model takes besides its weights: the beginning of its cache, and what its rows need
_AGAIN = 10.0  # seconds after a load has failed in which requests get its error at once: a broken file is not read for each
_ENDING = 5.0  # seconds in which a load that is under way ends at `close`: at the next layer, unless it fetches files
_LISTED = 20  # names of models in an error

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class ModelSource:
    """What a model is loaded from.

    fetch: brings its files to this machine where they are not, which may take long, and returns their bytes, about what its
    weights take in memory. load: makes the model; it calls its argument before each layer, which may raise.
    """

    fetch: Callable[[], int]
    load: Callable[[Progress], Model]

    @classmethod
    def of(cls, model: Model) -> ModelSource:
        """The source of a model that is loaded already."""
        return cls(lambda: 0, lambda _: model)


class ServedModel:
    """A loaded model: its name on the server, its engine, and the params of what requests leave out.

    most_characters: a length beyond which no text fits its context; the factor 2 allows for normalizers that merge or drop
    characters.
    """

    def __init__(self, name: str, engine: Engine, default_params: SamplingParams) -> None:
        self.name, self.engine, self.model, self.default_params = name, engine, engine.model, default_params
        tokenizer = self.model.tokenizer
        longest = max(len(tokenizer.token_bytes(i)) for i in range(len(tokenizer)))
        self.most_characters = 2 * self.model.config.context * longest


@dataclass(eq=False)
class _Entry:
    """A name and what is known of its model; guarded by the lock of `ServedModels`.

    waiting: for it to be loaded. users: the uses that have not been released. moving: whether a thread loads it. leaving:
    whether it is unloaded as soon as nobody uses it, so that who asks for it waits. used_at: when it was asked for or released
    last. error: why it could not be loaded, at failed_at.
    """

    name: str
    source: ModelSource
    loaded: ServedModel | None = None
    waiting: list[Future[ModelUse]] = field(default_factory=list)
    users: int = 0
    moving: bool = False
    leaving: bool = False
    used_at: float = 0.0
    error: Exception | None = None
    failed_at: float = 0.0


class ModelUse:
    """A model that stays loaded until `release`, which may be called again."""

    def __init__(self, served: ServedModel, release: Callable[[], None]) -> None:
        self.served = served
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> ServedModel:
        return self.served

    def __exit__(self, *_: object) -> None:
        self.release()


class ServedModels:
    """The models of a server by their names, in order. Methods may be called from any thread.

        who asks for a model    gets it at once if it is loaded, else when it is
        models are loaded       one at a time, on a thread of their own; the rows of the others go on
        before that             models are unloaded, those that were used least recently first, until there is room: fewer than
                                `most_loaded`, and memory for the new one's files
        a model that answers    is unloaded once it has; who asks for it meanwhile waits until it is loaded again

    Args:
        sources: at least one.
        max_rows, max_waiting, draft: as for `Engine`, of each model.
        default_params: of what requests leave out; None for each model's own.
        thinking: the thinking budget of requests that have none, and its message: these two fields of SamplingParams.
        most_loaded: how many models may be loaded together; None for as many as memory has room for.
        unload_after: seconds without a use, after which a model is unloaded; None for never.
    """

    def __init__(
        self,
        sources: Mapping[str, ModelSource],
        *,
        max_rows: int = 64,
        max_waiting: int = 256,
        draft: Draft = "auto",
        default_params: SamplingParams | None = None,
        thinking: SamplingParams | None = None,
        most_loaded: int | None = None,
        unload_after: float | None = None,
    ) -> None:
        self._entries = {name: _Entry(name, source) for name, source in sources.items()}
        self._max_rows, self._max_waiting, self._draft = max_rows, max_waiting, draft
        self._default_params, self._most_loaded, self._unload_after = default_params, most_loaded, unload_after
        self._thinking = thinking or SamplingParams()
        self._changed = threading.Condition()
        self._loading = threading.Lock()  # held while a model is loaded or unloaded, and until there is room for it
        self._closing = self._starting = False
        self._deliver: Deliver | None = None

    def start(self, deliver: Deliver) -> Future[ModelUse] | None:
        """Lets models be used. The only model is loaded now: returns what ends when it is, or has its error; None where there
        are several.

        deliver: as for `Engine`, of all engines.
        """
        self._deliver = deliver
        if self._unload_after is not None:
            threading.Thread(target=self._unload_idle, name="decodestep-idle-models", daemon=True).start()
        if len(self._entries) > 1:
            return None
        self._starting = True
        loading = self.ask(None)
        loading.add_done_callback(self._started)
        return loading

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def loaded(self, name: str) -> ServedModel | None:
        """A model if it is loaded now; it may be unloaded at any time."""
        with self._changed:
            return self._entries[name].loaded

    def state(self, name: str) -> str:
        """loaded, loading or unloaded."""
        with self._changed:
            entry = self._entries[name]
            return "loaded" if entry.loaded is not None else "loading" if entry.moving else "unloaded"

    def find(self, name: str | None) -> str:
        """The name of the model that a request means: the only one, whatever it says; of several the one of this name, and the
        first for None and "". Raises RequestError, with the code model_not_found, for another name."""
        if name is not None and name in self._entries:
            return name
        if len(self._entries) == 1 or not name:
            return next(iter(self._entries))
        listed = ", ".join(self.names[:_LISTED]) + (", ..." if len(self._entries) > _LISTED else "")
        raise RequestError("serve", "model", f"one of {listed}", describe(name), "model_not_found")

    def ask(self, name: str | None) -> Future[ModelUse]:
        """A use of a model, once it is loaded; its name as for `find`. Whoever asks must release it.

        The future has a ModelError where the model cannot be loaded, and an EngineClosedError after `close`.

        Raises:
            RequestError: as `find` does.
            QueueFullError: if too many wait for the model to be loaded.
        """
        entry = self._entries[self.find(name)]
        found: Future[ModelUse] = Future()
        with self._changed:
            if self._closing:
                self._give_locked(entry, _closed(), found)
            elif entry.loaded is not None and not entry.leaving:
                self._give_locked(entry, entry.loaded, found)
            elif entry.error is not None and time.monotonic() < entry.failed_at + _AGAIN:
                self._give_locked(entry, entry.error, found)
            elif len(entry.waiting) >= self._max_rows + self._max_waiting:
                raise QueueFullError(len(entry.waiting), round(_AGAIN))
            else:
                entry.waiting.append(found)
                self._load_if_wanted_locked(entry)
        return found

    def close(self, seconds: float = 0.0) -> None:
        """Ends all engines; running rows have so many seconds. May be called again."""
        with self._changed:
            self._closing = True
            engines = [entry.loaded.engine for entry in self._entries.values() if entry.loaded is not None]
            for entry in self._entries.values():
                self._give_all_locked(entry, _closed())
            self._changed.notify_all()
        end = time.monotonic() + seconds
        for engine in engines:
            engine.close(seconds, wait=False)
        for engine in engines:
            engine.close(max(0.0, end - time.monotonic()))
        with self._changed:
            self._changed.wait_for(lambda: not any(entry.moving for entry in self._entries.values()), _ENDING)

    def _started(self, loading: Future[ModelUse]) -> None:
        self._starting = False
        if loading.exception() is None:
            loading.result().release()

    def _give_all_locked(self, entry: _Entry, found: ServedModel | Exception) -> None:
        waiting, entry.waiting = entry.waiting, []
        for future in waiting:
            self._give_locked(entry, found, future)

    def _give_locked(self, entry: _Entry, found: ServedModel | Exception, future: Future[ModelUse]) -> None:
        """Gives a use, or the error, to one who waits, unless nobody does any more."""
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            entry.users += 1
            entry.used_at = time.monotonic()
            future.set_result(ModelUse(found, lambda: self._released(entry)))

    def _released(self, entry: _Entry) -> None:
        with self._changed:
            entry.users -= 1
            entry.used_at = time.monotonic()
            if not entry.users:
                self._changed.notify_all()

    def _load_if_wanted_locked(self, entry: _Entry) -> None:
        if entry.waiting and not (entry.moving or entry.leaving):
            entry.moving = True
            threading.Thread(target=self._load, args=(entry,), name="decodestep-load", daemon=True).start()

    def _load(self, entry: _Entry) -> None:
        """Loads a model for those who wait. On a thread of its own."""
        try:
            size = entry.source.fetch()
            with self._loading:
                self._make_room(size + _BESIDE)
                self._end_load(entry, self._new_served(entry))
        except Exception as error:
            self._end_load(entry, self._failure(entry.name, error))

    def _end_load(self, entry: _Entry, found: ServedModel | Exception) -> None:
        with self._changed:
            closing, entry.moving = self._closing, False
            if isinstance(found, Exception):
                entry.error, entry.failed_at = found, time.monotonic()
            elif not closing:
                entry.loaded, entry.error = found, None
            self._give_all_locked(entry, found)
            self._changed.notify_all()
        if closing and isinstance(found, ServedModel):
            found.engine.close()

    def _new_served(self, entry: _Entry) -> ServedModel:
        model = entry.source.load(lambda done, layers: self._require_open())
        default_params = (model.default_params if self._default_params is None else self._default_params).replace(
            thinking_budget_tokens=self._thinking.thinking_budget_tokens,
            thinking_budget_message=self._thinking.thinking_budget_message,
        )
        engine = Engine(model, max_rows=self._max_rows, max_waiting=self._max_waiting, draft=self._draft, deliver=self._deliver)
        return ServedModel(entry.name, engine, default_params)

    def _failure(self, name: str, error: Exception) -> Exception:
        """What those are told who wait for a load that has failed. The reason, which names files, is for the log."""
        if not (self._closing or self._starting):  # else it ends the server, which says so
            unexpected = not isinstance(error, (ModelError, RequestError, OSError, MemoryError))
            _LOG.error("the model %s could not be loaded: %s", name, error, exc_info=error if unexpected else None)
        failure = ModelError(f"the model {name} could not be loaded; the server's log says why")
        failure.__cause__ = error.with_traceback(None)  # its frames would hold what has been loaded
        return failure

    def _make_room(self, size: int) -> None:
        """Unloads models until there is room for one more of this size, or none is left."""
        while not self._has_room(size):
            self._require_open()
            with self._changed:
                loaded = [entry for entry in self._entries.values() if entry.loaded is not None]
                leaving = min(loaded, key=lambda entry: (entry.users > 0, entry.used_at))
                leaving.leaving = True
            self._unload(leaving)

    def _has_room(self, size: int) -> bool:
        with self._changed:
            count = sum(entry.loaded is not None for entry in self._entries.values())
        if self._most_loaded is not None and count >= self._most_loaded:
            return False
        return count == 0 or available_memory() >= size

    def _unload(self, entry: _Entry) -> None:
        """Unloads a model that is to leave, once nobody uses it."""
        with self._changed:
            self._changed.wait_for(lambda: not entry.users or self._closing)
            if self._closing:
                return
            served, entry.loaded = entry.loaded, None
        assert served is not None
        served.engine.close()
        del served
        trim_heap()
        _LOG.info("the model %s is unloaded", entry.name)
        with self._changed:
            entry.leaving = False
            self._load_if_wanted_locked(entry)

    def _unload_idle(self) -> None:
        """Unloads models that nobody has used for a while, until the server closes. On a thread of its own."""
        assert self._unload_after is not None
        while True:
            with self._changed:
                if self._closing:
                    return
                unused = [entry for entry in self._entries.values() if entry.loaded is not None and not entry.users]
                first = min(unused, key=lambda entry: entry.used_at, default=None)
                seconds = None if first is None else first.used_at + self._unload_after - time.monotonic()
                if first is None or (seconds is not None and seconds > 0):
                    self._changed.wait(seconds)
                    continue
            with self._loading:
                with self._changed:
                    late = time.monotonic() >= first.used_at + self._unload_after
                    first.leaving = first.loaded is not None and not first.users and late
                if first.leaving:
                    self._unload(first)

    def _require_open(self) -> None:
        if self._closing:
            raise _closed()


def _closed() -> EngineClosedError:
    return EngineClosedError("the server is stopping and accepts no more requests")
