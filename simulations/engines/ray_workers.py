"""Shards as actors of Ray, on this machine or on a cluster; lost shards are played again."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS, Catalogue
from fldb_flower.errors import FederationError, SettingsError, one_line
from fldb_flower.federation.agents import require_agents
from fldb_flower.runs.experiment import CHECKPOINT_COST
from fldb_flower.settings import Settings
from fldb_flower.system.process import keep_freed_memory, one_blas_thread, processors
from fldb_flower.system.startup import is_forked
from simulations.engines import SLOW_START, STARTS
from simulations.engines.vectorized import Worker, joined, split

LOCAL = "local"  # address for which Ray starts a cluster on this machine
REPLAYED = 32  # minimum number of exchanges between two saved states of the agents
ATTEMPTS = 4  # attempts of a call if actors are lost
START_SECONDS = 300.0  # time limit for the start of all actors
_RELEASE_SECONDS, _POLL_SECONDS, _CONNECT_SECONDS = 20.0, 0.05, 10.0
_CATALOGUES: tuple[Catalogue, ...] = (ALGORITHMS, SELECTIONS, ENVIRONMENTS)
_LOG = logging.getLogger("fldb_flower")


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Yield the module ``ray``, connected to the cluster at RAY_ADDRESS, or to one of this process.

    The latter is stopped at the end. A connection that this process has already stays open.
    """
    where = os.environ.get("RAY_ADDRESS") or LOCAL
    if where == LOCAL:
        # Servers listen on 127.0.0.1. Ray reads the variable when it is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SettingsError(
            f"engine.workers=ray needs Ray: pip install 'flwr[simulation]', or use"
            f" engine.workers=auto ({one_line(error)})"
        ) from None
    if not ray.is_initialized():
        _start(ray, where)
        try:
            yield ray
        finally:
            ray.shutdown()
    elif is_forked():
        raise FederationError(
            "engine.workers=ray: this process was forked from one that is connected to Ray; use"
            " jobs=1, or start the sweep before ray.init"
        )
    else:
        yield ray


def _start(ray: Any, where: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    host, _, port = where.rpartition(":")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if where == LOCAL:
            options |= {"num_cpus": processors(), "include_dashboard": False}
        elif host and "/" not in host and port.isdecimal():  # Ray waits for minutes for a listener
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of future versions of Ray
            for left in reversed(range(STARTS)):
                try:
                    ray.init(where, **options)
                    return
                except Exception as error:
                    if SLOW_START not in str(error) or not left:
                        raise
                    ray.shutdown()
    except Exception as error:  # Ray raises many kinds
        what = "Ray did not start" if where == LOCAL else f"RAY_ADDRESS={where}: no cluster there"
        remedy = "" if where == LOCAL else "; `ray start --head` starts one"
        raise FederationError(one_line(f"{what}: {' '.join(str(error).split())}{remedy}")) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it


class Actor(Worker):
    """Some of the shards in a process of Ray; ``added`` is what the user registered for them."""

    def __init__(
        self, settings: Settings, shards: Sequence[range], added: Sequence[Any], folder: str
    ) -> None:
        super().__init__(settings, shards)
        with contextlib.suppress(OSError):  # another machine may not have the folder
            os.chdir(folder)  # for relative paths in the settings
        for place, name, facts in added:
            _CATALOGUES[place].register(name, **facts)
        keep_freed_memory()
        one_blas_thread()  # until the process ends


class RayWorkers:
    """Shards in actors, one for each free CPU of the cluster.

    The states of all shards, and the broadcasts since they were saved, are kept in Ray's object
    store. If an actor is lost, another one restores its states and receives these broadcasts again,
    so the results are identical. States are saved every `REPLAYED` exchanges, or less often if
    saving takes more than ``1 / CHECKPOINT_COST`` of the time.
    """

    def __init__(self, settings: Settings, shards: Sequence[range]) -> None:
        self._settings, self._due = settings, 0.0
        self._saved: list[Any] = []  # by actor: reference to the arguments of `restore`
        self._since: list[Any] = []  # references to the arguments of `answer` since then
        self._replayed: dict[int, list[Any]] = {}  # references to what a new actor returns
        self._actors: list[Any] = []
        with contextlib.ExitStack() as opened:
            self._ray = opened.enter_context(connected())
            if sum(node["Alive"] for node in self._ray.nodes()) == 1:  # this machine
                require_agents(settings, settings.num_agents, may_repeat=False)
            self._shards = split(shards, self._free_cpus(len(shards)))
            opened.callback(lambda: [self._ray.kill(actor) for actor in self._actors])
            self._actors += [self._actor(part, num_cpus=1) for part in self._shards]
            # Ray may have placed an actor on a node that was just lost.
            self._from_each(lambda at: self._actors[at].__ray_ready__.remote(), START_SECONDS)
            self.close = opened.pop_all().close  # ends actors, and the connection or the cluster

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of the group of each shard; return what each returned."""
        sent, begin = self._put(arguments), time.monotonic()
        if method == "restore":
            self._saved, self._since = sent, []
        results = self._call(method, sent)
        if method == "answer":
            self._since.append(sent[0])
            if len(self._since) >= REPLAYED and time.monotonic() >= self._due:
                self.call("state", [()])
        elif method == "state":
            self._saved, self._since = self._put([(state,) for state in results]), []
            self._due = begin + (CHECKPOINT_COST + 1) * (time.monotonic() - begin)
        return results

    def _put(self, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return references to the arguments for each actor."""
        if len(arguments) == 1:  # the same for all
            return [self._ray.put(arguments)] * len(self._actors)
        return [self._ray.put(part) for part in split(arguments, len(self._actors))]

    def _actor(self, shards: Sequence[range], **options: Any) -> Any:
        settings = self._settings
        names = (settings.algorithm, settings.selection, settings.environment.name)
        added = [
            (place, name, dict(vars(_CATALOGUES[place][name])))
            for place, name in enumerate(names)
            if name in _CATALOGUES[place].added
        ]
        create = self._ray.remote(Actor).options(scheduling_strategy="SPREAD", **options).remote
        try:
            return create(settings, shards, added, str(Path.cwd()))
        except TypeError as error:
            registered, reason = ", ".join(each[1] for each in added), str(error).splitlines()[0]
            text = f"{registered} cannot be sent to Ray: {one_line(reason)}"
            raise FederationError(text) from None

    def _call(self, method: str, sent: Sequence[Any]) -> list[Any]:
        return joined(self._from_each(lambda at: self._actors[at].reply.remote(method, sent[at])))

    def _from_each(self, ask: Callable[[int], Any], seconds: float | None = None) -> list[Any]:
        """Return the reply of each actor; one that is lost is replaced and asked again."""
        replies: dict[int, Any] = {}
        end = None if seconds is None else time.monotonic() + seconds
        for _ in range(ATTEMPTS):
            missing = [at for at in range(len(self._actors)) if at not in replies]
            calls = {at: ask(at) for at in missing}
            lost: dict[int, Exception] = {}
            for at, call in calls.items():
                left = None if end is None else max(0.0, end - time.monotonic())
                try:
                    *replayed, reply = self._ray.get(
                        [*self._replayed.get(at, ()), call], timeout=left
                    )
                except self._ray.exceptions.RayError as error:
                    lost[at] = error
                else:
                    joined(replayed)  # raises the error of one
                    self._replayed.pop(at, None)
                    replies[at] = reply
            if not lost:
                return [replies[at] for at in range(len(self._actors))]
            for at, reason in lost.items():
                self._replace(at, reason)
            count = f"{len(lost)} of {len(self._actors)}"
            _LOG.warning("Ray lost %s actors; others play their agents again", count)
        raise _failure(reason)

    def _replace(self, at: int, error: Exception) -> None:
        """Start another actor for the shards of a lost one, in the state before the call."""
        fails_again = getattr(error, "actor_init_failed", False)
        is_final = isinstance(error, (self._ray.exceptions.RayTaskError, TimeoutError))
        if fails_again or is_final:
            raise _failure(error) from None
        self._ray.kill(self._actors[at])  # it may only be out of reach
        # All CPUs may be taken by the other actors, so it demands none. An actor without any demand
        # would be created by way of a random node, which may be the lost one.
        actor = self._actors[at] = self._actor(self._shards[at], num_cpus=0, memory=1)
        calls = [("restore", self._saved[at])] if self._saved else []
        calls += [("answer", request) for request in self._since]
        self._replayed[at] = [actor.reply.remote(*call) for call in calls]

    def _free_cpus(self, wanted: int) -> int:
        """Return how many CPUs to use; wait for those that an earlier run has just released."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        total = max(1, min(wanted, int(self._ray.cluster_resources().get("CPU", 0))))
        while (free := int(self._ray.available_resources().get("CPU", 0))) < total:
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if free < 1:
            raise FederationError("Ray has no free CPU for the agents")
        return min(free, wanted)


def _failure(error: Exception) -> FederationError:
    """Return the error of an actor that cannot start, or is lost repeatedly, as one line."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
    return FederationError(f"an actor of Ray failed: {one_line(reason)}")
