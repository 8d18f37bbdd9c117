"""Shards as actors of Ray, on this machine or on a cluster; lost shards are played again."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS, Catalogue
from fldb_flower.errors import FederationError, one_line
from fldb_flower.federation.blocks import require_agents
from fldb_flower.federation.exchange import Broadcast, Upload
from fldb_flower.runs.experiment import CHECKPOINT_COST
from fldb_flower.settings import Settings
from fldb_flower.system.process import keep_freed_memory, one_blas_thread
from simulations.engines.ray_cluster import address, connected
from simulations.engines.workers import State, Worker, joined, split

REPLAYED = 32
"""Exchanges after which the state of the agents is saved again, at least."""
ATTEMPTS = 4
"""How often a call is tried if actors are lost."""
START_SECONDS = 300.0
"""Time for all actors to start."""
_RELEASE_SECONDS, _POLL_SECONDS = 20.0, 0.05

_LOG = logging.getLogger("fldb_flower")


class Actor(Worker):
    """Some of the shards in a process of Ray.

    Parameters
    ----------
    settings, shards
        See :class:`Worker`.
    added : sequence of tuple
        What the user registered, as arguments of :func:`register`.
    folder : str
        The working directory of the run, for relative paths in the settings.
    """

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[range],
        added: Sequence[Any],
        folder: str,
    ) -> None:
        super().__init__(settings, shards)
        with contextlib.suppress(OSError):  # another machine may not have the folder
            os.chdir(folder)
        register(added)
        keep_freed_memory()
        one_blas_thread()  # until the process ends

    def node(self) -> str:
        """Return the identifier of the node on which this actor runs."""
        import ray  # noqa: PLC0415 - it is imported where actors are

        return str(ray.get_runtime_context().get_node_id())


_CATALOGUES: dict[str, Catalogue[Any]] = {
    "algorithm": ALGORITHMS,
    "selection": SELECTIONS,
    "environment": ENVIRONMENTS,
}


def added_by_user(settings: Settings) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what the settings use of what the user registered, for :func:`register`."""
    names = {
        "algorithm": settings.algorithm,
        "selection": settings.selection,
        "environment": settings.environment.name,
    }
    return [
        (kind, name, dict(vars(_CATALOGUES[kind][name])))
        for kind, name in names.items()
        if name in _CATALOGUES[kind].added
    ]


def register(added: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    """Register what :func:`added_by_user` returned in another process."""
    for kind, name, facts in added:
        _CATALOGUES[kind].register(name, **facts)


@dataclass
class _Part:
    """The shards of one actor, and where they are played."""

    shards: Sequence[range]
    actor: Any = None
    node: str = ""
    saved: Any = None  # reference to the arguments of `restore`; None before the first
    replayed: Sequence[Any] = ()  # references to what an actor that replaces a lost one returns


class RayWorkers:
    """Shards in actors, one for each free CPU of the cluster.

    The states of all shards are kept with the broadcasts since then, in Ray's object store. If an
    actor is lost, another one restores its states and gets the broadcasts again, so that the
    results are identical. States are saved every `REPLAYED` exchanges, or less often if saving
    takes more than a share of ``1 / CHECKPOINT_COST`` of the time.

    Raises
    ------
    SettingsError
        Ray is not installed, or the agents do not fit in the memory of the only machine.
    FederationError
        The cluster cannot be reached, or has no free CPU, or the actors do not start.
    """

    def __init__(self, settings: Settings, shards: Sequence[range]) -> None:
        self._settings = settings
        self._since: list[Any] = []  # references to the broadcasts after the saved states
        self._due = 0.0
        with contextlib.ExitStack() as opened:
            self._ray = opened.enter_context(connected())
            if sum(node["Alive"] for node in self._ray.nodes()) == 1:  # this machine
                require_agents(settings, settings.num_agents, may_repeat=False)
            count = min(_free_cpus(self._ray, len(shards)), len(shards))
            self._parts = [_Part(each) for each in split(shards, count)]
            opened.callback(self._kill)
            self._start()
            self._opened = opened.pop_all()

    def answer(self, broadcast: Broadcast, counted: int) -> list[Upload]:
        """Return the upload of each shard."""
        request = self._ray.put((broadcast, counted))
        uploads = self._call("answer", [request] * len(self._parts))
        self._since.append(request)
        if len(self._since) >= REPLAYED and time.monotonic() >= self._due:
            self.state()
        return uploads

    def state(self) -> list[State]:
        """Return the state of each shard, and keep it for actors that are lost."""
        begin = time.monotonic()
        states: list[State] = self._call("state", [()] * len(self._parts))
        self._keep(states)
        now = time.monotonic()
        self._due = now + CHECKPOINT_COST * (now - begin)
        return states

    def restore(self, states: Sequence[State]) -> None:
        """Restore the states of the shards."""
        self._keep(states)
        self._call("restore", [part.saved for part in self._parts])

    def close(self) -> None:
        """End the actors, and the connection or the cluster that was started for them."""
        self._opened.close()

    def _keep(self, states: Sequence[State]) -> None:
        for part, its_states in zip(self._parts, split(states, len(self._parts)), strict=True):
            part.saved = self._ray.put((its_states,))
        self._since.clear()

    def _start(self) -> None:
        for part in self._parts:
            part.actor = self._actor(part, num_cpus=1, scheduling_strategy="SPREAD")
        nodes = [part.actor.node.remote() for part in self._parts]
        try:
            for part, node in zip(self._parts, nodes, strict=True):
                part.node = self._ray.get(node, timeout=START_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            raise FederationError(
                f"Ray at {address()} did not start {len(nodes)} actors within {START_SECONDS:g} s:"
                " are its CPUs in use?"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise _failure(error) from None

    def _actor(self, part: _Part, **options: Any) -> Any:
        actor, settings = self._ray.remote(Actor).options(**options), self._settings
        added, folder = added_by_user(settings), str(Path.cwd())
        try:
            return actor.remote(settings, part.shards, added, folder)
        except TypeError as error:
            names = ", ".join(name for _, name, _ in added)
            reason = one_line(str(error).splitlines()[0])
            raise FederationError(f"{names} cannot be sent to Ray: {reason}") from None

    def _call(self, method: str, arguments: Sequence[Any]) -> list[Any]:
        """Call a method of all actors; return the results for all shards.

        The arguments are a tuple, or a reference to one, for each actor.
        """
        replies: dict[int, Any] = {}
        for _ in range(ATTEMPTS):
            calls = {
                at: part.actor.call.remote(method, arguments[at])
                for at, part in enumerate(self._parts)
                if at not in replies
            }
            lost: dict[int, Exception] = {}
            for at, call in calls.items():
                try:
                    *replayed, reply = self._ray.get([*self._parts[at].replayed, call])
                except self._ray.exceptions.RayError as error:
                    lost[at] = error
                else:
                    joined(replayed)  # raises the error of one
                    self._parts[at].replayed, replies[at] = (), reply
            if not lost:
                return joined([replies[at] for at in range(len(self._parts))])
            for at, reason in lost.items():
                self._replace(self._parts[at], reason)
            count = f"{len(lost)} of {len(self._parts)}"
            _LOG.warning("Ray lost %s actors; others play their agents again", count)
        raise _failure(reason)

    def _replace(self, part: _Part, error: Exception) -> None:
        """Start another actor for the shards of a lost one, in the state before the call."""
        if isinstance(error, self._ray.exceptions.RayTaskError) or getattr(
            error, "actor_init_failed", False
        ):
            raise _failure(error) from None  # not lost: it would fail again
        self._ray.kill(part.actor)  # it may only be out of reach
        part.node = self._node(part.node)
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        # All CPUs may be taken by the other actors, so it demands none. An actor without any demand
        # would be created by way of a random node, which may be the lost one.
        part.actor = self._actor(
            part, num_cpus=0, memory=1, scheduling_strategy=affinity(part.node, soft=True)
        )
        restored = [] if part.saved is None else [part.actor.call.remote("restore", part.saved)]
        answers = [part.actor.call.remote("answer", request) for request in self._since]
        part.replayed = restored + answers

    def _node(self, lost: str) -> str:
        """Return the node with the fewest actors per CPU; ``lost`` only if there is no other."""
        nodes: dict[str, float] = {
            node["NodeID"]: node["Resources"]["CPU"]
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU")
        }
        if len(nodes) > 1:
            nodes.pop(lost, None)
        if not nodes:
            raise FederationError(f"Ray at {address()} has no node with CPUs left")
        used = [part.node for part in self._parts]
        return min(nodes, key=lambda node: used.count(node) / nodes[node])

    def _kill(self) -> None:
        for part in self._parts:
            if part.actor is not None:
                self._ray.kill(part.actor)


def _free_cpus(ray: Any, wanted: int) -> int:
    """Return the number of free CPUs; wait for those that an earlier run has just released."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    total = min(wanted, int(ray.cluster_resources().get("CPU", 0)))
    while True:
        free = int(ray.available_resources().get("CPU", 0))
        if free >= total > 0:
            return free
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    if free < 1:
        raise FederationError(f"Ray at {address()} has no free CPU for the agents")
    return free


def _failure(error: Exception) -> FederationError:
    """Return the error of an actor that cannot start, or is lost repeatedly, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = one_line(lines[-1] if lines else type(error).__name__)
    return FederationError(f"an actor of Ray failed: {reason}")
