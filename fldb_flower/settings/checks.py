"""Checks of settings that depend on each other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS
from fldb_flower.errors import SettingsError
from fldb_flower.settings.entries import AUTO, NONE, RAY, entries_of
from fldb_flower.settings.needs import NO_NOISE

if TYPE_CHECKING:
    from fldb_flower.settings.declaration import Settings


MOVIELENS_ITEMS = 200  # the items with most ratings; also the number of users
MOVIELENS_DIMENSIONS = 20  # users whose ratings define the features

_NUMBERS = {"num_agents": 100, "horizon": 500, "dimension": 5}
"""Values of settings that are auto, unless the environment's data determine them."""
ENVIRONMENT_OF = {
    "users": "movielens",
    "play": "duels",
    "max_people": "duels",
    "min_answers": "duels",
}
"""Settings of one environment only."""


SELECTION_SETTINGS = (
    "algorithm", "selection", "kappa_mu", "delta", "beta_scale", "ons_width", "lambda_",
    "matrix_form", "personal_ridge", "personal_width",
)  # fmt: skip
"""Settings of the server's run that a device selects pairs of arms with."""


def automatic(settings: Settings) -> dict[str, Any]:
    """Return the values of settings that are auto, by name.

    Raises
    ------
    DataError
        The data of the environment cannot be read, or do not fit the settings.
    """
    values: dict[str, Any] = {
        name: number for name, number in _NUMBERS.items() if getattr(settings, name) == AUTO
    }
    environment = settings.environment
    if settings.mode == "devices" or not ENVIRONMENTS[environment.name].implies:
        return values
    if values or environment.play == AUTO:
        implied = ENVIRONMENTS.load(environment.name).implied(settings)
        values = {name: implied.get(name, number) for name, number in values.items()}
        environment = replace(environment, play=implied.get("play", environment.play))
        values["environment"] = environment
    if environment.play == "predict":
        values["num_arms"] = 2  # those of the recorded duel
    return values


def takes_one_exchange(settings: Settings) -> bool:
    """Return whether each round takes exactly one exchange of statistics.

    FLDB-Personal's does; with ``first_round=step`` also those of FLDB-OGD and FLDB-ONS. A round
    that is run again, because replies were missing, repeats its exchange.

    Examples
    --------
    >>> from fldb_flower.settings import Settings, takes_one_exchange
    >>> takes_one_exchange(Settings(algorithm="fldb_ons"))
    False
    >>> takes_one_exchange(Settings(algorithm="fldb_ons", first_round="step"))
    True
    """
    exchanges = ALGORITHMS[settings.algorithm].exchanges
    is_step = settings.takes_first_step
    return exchanges == "one" or (exchanges == "several_first" and is_step)


def check_together(settings: Settings, source: str) -> None:
    """Raise a SettingsError if two settings are incompatible."""
    for check in (
        _check_engine, _check_algorithm, _check_matrix_form, _check_environment, _check_secure,
        _check_privacy, _check_clip
    ):  # fmt: skip
        if problem := check(settings):
            setting, reason = problem
            raise SettingsError(f"{setting} (from {source}){reason}")


Problem = tuple[str, str] | None
"""A setting with its value, and the rest of the error message."""


def _check_engine(settings: Settings) -> Problem:
    nodes, agents, engine = settings.engine.num_nodes, settings.num_agents, settings.engine.name
    if engine != "vectorized" and nodes > agents:
        reason = f"at most num_agents={agents}, because each node hosts at least one agent"
        return f"engine.num_nodes={nodes}", f": must be {reason}"
    if settings.dropout > 0 and engine != "inprocess":
        return f"dropout={settings.dropout:g}", f": needs engine=inprocess, not engine={engine}"
    workers = settings.engine.workers
    if workers != AUTO and engine != "vectorized":
        return f"engine.workers={workers}", f": needs engine=vectorized, not engine={engine}"
    if workers == RAY and settings.backend != "numpy":
        return "engine.workers=ray", f": needs backend=numpy, not backend={settings.backend}"
    if settings.rng == "torch" and settings.backend == "numpy":
        return "rng='torch'", ": needs backend=cpu or backend=cuda, not backend=numpy"
    return None


def _check_algorithm(settings: Settings) -> Problem:
    if settings.robust != "none":
        robust = [
            name for name, entry in ALGORITHMS.items() if entry.online and entry.agents == "common"
        ]
        if settings.algorithm not in robust:
            reason = f": needs algorithm {' or '.join(robust)}, not {settings.algorithm}"
            return f"robust={settings.robust!r}", reason
    if settings.first_round == "step":
        able = [name for name, each in ALGORITHMS.items() if each.exchanges == "several_first"]
        if settings.algorithm not in able:
            reason = f": needs algorithm {' or '.join(able)}, not {settings.algorithm}"
            return f"first_round={settings.first_round!r}", reason
    if ALGORITHMS[settings.algorithm].online:
        return None
    online = [name for name, entry in ALGORITHMS.items() if entry.online]
    if settings.mode == "devices":
        reason = "the others need every device in every round, or no server"
        required = f": must be one of {', '.join(online)} with mode=devices: {reason}"
        return f"algorithm={settings.algorithm!r}", required
    return None


def _check_matrix_form(settings: Settings) -> Problem:
    if settings.matrix_form == "full":
        return None
    name = f"matrix_form={settings.matrix_form!r}"
    agents = ALGORITHMS[settings.algorithm].agents
    if agents == "personal":
        reason = "needs full matrices; use matrix_form=full"
        return name, f": algorithm={settings.algorithm} {reason}"
    if agents == "local":
        reason = "sends no matrices; its agents keep full ones"
        return name, f": algorithm={settings.algorithm} {reason}"
    if settings.algorithm == "fldb_gd" and settings.solver == "newton":
        reason = "needs full Hessians, of d^2 numbers; use solver=lbfgs or solver=gd"
        return name, f": algorithm=fldb_gd with solver=newton {reason}"
    return None


def _check_environment(settings: Settings) -> Problem:
    name = settings.environment.name
    for own, owner in ENVIRONMENT_OF.items():
        value = getattr(settings.environment, own)
        if name != owner and value != getattr(type(settings.environment), own):
            return f"environment.{own}={value!r}", f": needs environment={owner}, not {name}"
    return _check_movielens(settings) if name == "movielens" else None


def _check_movielens(settings: Settings) -> Problem:
    d, arms = settings.dimension, settings.num_arms
    if d > MOVIELENS_DIMENSIONS:
        reason = f"whose features are the SVD of {MOVIELENS_DIMENSIONS} users' ratings"
        return f"dimension={d}", f": must be at most {MOVIELENS_DIMENSIONS} for MovieLens, {reason}"
    if arms > MOVIELENS_ITEMS:
        limit = f"{MOVIELENS_ITEMS} for MovieLens, its number of items"
        return f"num_arms={arms}", f": must be at most {limit}"
    if not settings.environment.path:
        reason = ": set it to the downloaded MovieLens ratings, a file, a folder or the zip"
        return "environment.path is empty", reason
    return None


def _check_secure(settings: Settings) -> Problem:
    if not settings.secure:
        return None
    if settings.mode != "devices":
        return "secure=true", (
            ": needs mode=devices, with a helper; simulate its noise with privacy.epsilon=3"
            " privacy.parties=2, or try `fldb demo --secure`"
        )
    if settings.privacy.epsilon == NONE:
        return "secure=true", (
            ": needs privacy.epsilon, because a sum without noise can be one person's answer; for"
            " small groups use secure=false: connections are encrypted, and the server's operator"
            " can read uploads"
        )
    devices = settings.devices
    if not devices.helper.startswith(("https://", "http://")):
        name = f"devices.helper={devices.helper!r}" if devices.helper else "devices.helper is empty"
        return name, ": secure=true needs the address of the helper, like https://helper.example"
    for name, path in (("helper_key", devices.helper_key), ("helper_token", devices.helper_token)):
        if not Path(path).is_absolute():
            text = f"devices.{name}={path!r}" if path else f"devices.{name} is empty"
            return text, ": secure=true needs the absolute path of this file on the server"
    return None


def clip_length(settings: Settings) -> float | None:
    """Return ``privacy.clip`` as a number; None if it is auto and nothing determines it.

    auto is max_difference if that is a number. In a simulation with ``environment=synthetic``, it
    is ``sqrt(2 d)``, the root of the mean squared length of a difference of two N(0, I) arms.
    """
    clip, longest = settings.privacy.clip, settings.max_difference
    if clip != AUTO:
        return float(clip)
    if longest != AUTO:
        return float(longest)
    if settings.mode == "simulation" and settings.environment.name == "synthetic":
        return math.sqrt(2.0 * settings.dimension)
    return None


def _check_privacy(settings: Settings) -> Problem:
    if settings.privacy.epsilon == NONE:
        return _unused_privacy(settings) if settings.mode == "devices" else None
    if reason := _obstacle_to_privacy(settings):
        return f"privacy.epsilon={settings.privacy.epsilon:g}", f": {reason}"
    return _check_unit(settings)


def _unused_privacy(settings: Settings) -> Problem:
    """Refuse settings of privacy without epsilon: devices would send statistics without noise."""
    group: type = type(settings.privacy)
    for entry in entries_of(group):
        if (value := entry.value(settings)) != entry.default:
            reason = f": has no effect with {NO_NOISE}, or leave this setting out"
            return f"{entry.dotted}={value!r}", reason
    return None


def _obstacle_to_privacy(settings: Settings) -> str:
    """Return why no noise can be added with these settings, and the remedy; empty if none."""
    algorithm = settings.algorithm
    exchanges = ALGORITHMS[algorithm].exchanges
    if exchanges == "none":
        return f"algorithm={algorithm} releases nothing, so it needs no noise; leave it out"
    if not takes_one_exchange(settings):
        if exchanges == "several_first":
            return (
                f"algorithm={algorithm} releases several sums over the duels of the first round;"
                " use first_round=step"
            )
        return (
            f"algorithm={algorithm} releases many sums over all duels, each of which needs noise;"
            " use algorithm=fldb_ons with first_round=step"
        )
    reasons = {
        "robust": ("trimmed", "a trimmed mean has no known sensitivity; use robust=none"),
    }
    for name, (value, reason) in reasons.items():
        if getattr(settings, name) == value:
            return f"{name}={value}: {reason}"
    if settings.mode == "devices" and not settings.devices.rounds:
        return "devices.rounds=0: the noise depends on the number of rounds; use a positive one"
    return ""


def _check_unit(settings: Settings) -> Problem:
    unit, name = settings.privacy.unit, f"privacy.unit={settings.privacy.unit!r}"
    if unit == "answer":
        remedy = "use privacy.unit=person"
        if ALGORITHMS[settings.algorithm].agents != "common":
            reason = "an agent's answers determine which arms it shows later, and its later uploads"
            return name, f": algorithm={settings.algorithm}: {reason}; {remedy}"
        if settings.mode == "devices":
            reason = "a device selects arms with answers that no round has counted yet"
            return name, f": mode=devices: {reason}; {remedy}"
    return None


def _check_clip(settings: Settings) -> Problem:
    if settings.privacy.epsilon == NONE:
        return None
    clip, longest = clip_length(settings), settings.max_difference
    if clip is None:
        where = "mode=devices" if settings.mode == "devices" else settings.environment.name
        reason = f"a number for {where}, or max_difference as a number: the noise is proportional"
        return "privacy.clip='auto'", f": must be {reason} to this length"
    if longest != AUTO and clip > float(longest):
        return f"privacy.clip={clip:g}", f": must be at most max_difference={longest:g}"
    return None
