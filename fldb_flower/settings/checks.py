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
    "users": "movielens", "play": "duels", "max_people": "duels", "min_answers": "duels"
}  # fmt: skip
"""Settings of one environment only."""


SELECTION_SETTINGS = (
    "algorithm", "selection", "kappa_mu", "delta", "beta_scale", "ons_width", "lambda_",
    "matrix_form", "personal_ridge", "personal_width",
)  # fmt: skip
"""Settings of the server's run that a device selects pairs of arms with."""


def automatic(settings: Settings) -> dict[str, Any]:
    """Return the values of settings that are auto, by name; the data may raise a DataError."""
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
    """
    exchanges = ALGORITHMS[settings.algorithm].exchanges
    is_step = settings.takes_first_step
    return exchanges == "one" or (exchanges == "several_first" and is_step)


Problem = tuple[str, str] | None
"""A setting with its value, and the rest of the error message."""


def check_together(settings: Settings, source: str) -> None:
    """Raise a SettingsError if two settings are incompatible."""
    checks = (
        _check_engine, _check_algorithm, _check_matrix_form, _check_environment, _check_secure,
        _check_privacy,
    )  # fmt: skip
    for check in checks:
        if problem := check(settings):
            setting, reason = problem
            raise SettingsError(f"{setting} (from {source}): {reason}")


def _check_engine(settings: Settings) -> Problem:
    nodes, agents, engine = settings.engine.num_nodes, settings.num_agents, settings.engine.name
    if engine != "vectorized" and nodes > agents:
        reason = f"at most num_agents={agents}, because each node hosts at least one agent"
        return f"engine.num_nodes={nodes}", f"must be {reason}"
    if settings.dropout > 0 and engine != "inprocess":
        return f"dropout={settings.dropout:g}", f"needs engine=inprocess, not engine={engine}"
    workers = settings.engine.workers
    if workers != AUTO and engine != "vectorized":
        return f"engine.workers={workers}", f"needs engine=vectorized, not engine={engine}"
    if workers == RAY and settings.backend != "numpy":
        return "engine.workers=ray", f"needs backend=numpy, not backend={settings.backend}"
    if settings.rng == "torch" and settings.backend == "numpy":
        return "rng='torch'", "needs backend=cpu or backend=cuda, not backend=numpy"
    return None


def _check_algorithm(settings: Settings) -> Problem:
    """Compare the algorithm with those that can be robust, take one step, or run with devices."""
    online = [name for name, each in ALGORITHMS.items() if each.online]
    robust = [name for name in online if ALGORITHMS[name].agents == "common"]
    able = [name for name, each in ALGORITHMS.items() if each.exchanges == "several_first"]
    name = settings.algorithm
    for key, value, valid in (("robust", "trimmed", robust), ("first_round", "step", able)):
        if getattr(settings, key) == value and name not in valid:
            return f"{key}={value!r}", f"needs algorithm {' or '.join(valid)}, not {name}"
    if settings.mode == "devices" and name not in online:
        reason = "the others need every device in every round, or no server"
        return (
            f"algorithm={name!r}",
            f"must be one of {', '.join(online)} with mode=devices: {reason}",
        )
    return None


def _check_matrix_form(settings: Settings) -> Problem:
    algorithm, reason = settings.algorithm, ""
    if settings.matrix_form != "full":
        reason = {
            "personal": "needs full matrices; use matrix_form=full",
            "local": "sends no matrices; its agents keep full ones",
        }.get(ALGORITHMS[algorithm].agents, "")
        if algorithm == "fldb_gd" and settings.solver == "newton":
            remedy = "use solver=lbfgs or solver=gd"
            reason = f"with solver=newton needs full Hessians, of d^2 numbers; {remedy}"
    name = f"matrix_form={settings.matrix_form!r}"
    return (name, f"algorithm={algorithm} {reason}") if reason else None


def _check_environment(settings: Settings) -> Problem:
    name, d, arms = settings.environment.name, settings.dimension, settings.num_arms
    for own, owner in ENVIRONMENT_OF.items():
        value = getattr(settings.environment, own)
        if name != owner and value != getattr(type(settings.environment), own):
            return f"environment.{own}={value!r}", f"needs environment={owner}, not {name}"
    if name == "movielens" and d > MOVIELENS_DIMENSIONS:
        reason = f"whose features are the SVD of {MOVIELENS_DIMENSIONS} users' ratings"
        return f"dimension={d}", f"must be at most {MOVIELENS_DIMENSIONS} for MovieLens, {reason}"
    if name == "movielens" and arms > MOVIELENS_ITEMS:
        limit = f"{MOVIELENS_ITEMS} for MovieLens, its number of items"
        return f"num_arms={arms}", f"must be at most {limit}"
    if name == "movielens" and not settings.environment.path:
        reason = "set it to the downloaded MovieLens ratings, a file, a folder or the zip"
        return "environment.path is empty", reason
    return None


def _check_secure(settings: Settings) -> Problem:
    if not settings.secure:
        return None
    if settings.mode != "devices":
        return "secure=true", (
            "needs mode=devices, with a helper; simulate its noise with privacy.epsilon=3"
            " privacy.parties=2, or try `fldb demo --secure`"
        )
    if settings.privacy.epsilon == NONE:
        return "secure=true", (
            "needs privacy.epsilon, because a sum without noise can be one person's answer; for"
            " small groups use secure=false: connections are encrypted, and the server's operator"
            " can read uploads"
        )
    devices = settings.devices
    if not devices.helper.startswith(("https://", "http://")):
        name = f"devices.helper={devices.helper!r}" if devices.helper else "devices.helper is empty"
        return name, "secure=true needs the address of the helper, like https://helper.example"
    for name, path in (("helper_key", devices.helper_key), ("helper_token", devices.helper_token)):
        if not Path(path).is_absolute():
            text = f"devices.{name}={path!r}" if path else f"devices.{name} is empty"
            return text, "secure=true needs the absolute path of this file on the server"
    return None


def _check_privacy(settings: Settings) -> Problem:
    privacy, name = settings.privacy, settings.algorithm
    is_devices = settings.mode == "devices"
    if privacy.epsilon == NONE:
        group: type = type(privacy)
        for entry in entries_of(group):
            value = entry.value(settings)
            if is_devices and value != entry.default:  # statistics would have no noise
                reason = f"has no effect with {NO_NOISE}, or leave this setting out"
                return f"{entry.dotted}={value!r}", reason
        return None
    if reason := _obstacle_to_privacy(settings):
        return f"privacy.epsilon={privacy.epsilon:g}", reason
    if privacy.unit == "answer" and (is_devices or ALGORITHMS[name].agents != "common"):
        reason = f"algorithm={name}: an agent's answers determine which arms it shows later, and"
        reason += " its later uploads"
        if ALGORITHMS[name].agents == "common":
            reason = "mode=devices: a device selects arms with answers that no round has counted"
            reason += " yet"
        return "privacy.unit='answer'", f"{reason}; use privacy.unit=person"
    return _check_clip(settings)


def _check_clip(settings: Settings) -> Problem:
    clip, longest = clip_length(settings), settings.max_difference
    if clip is None:
        where = "mode=devices" if settings.mode == "devices" else settings.environment.name
        reason = f"a number for {where}, or max_difference as a number: the noise is proportional"
        return "privacy.clip='auto'", f"must be {reason} to this length"
    if longest != AUTO and clip > float(longest):
        return f"privacy.clip={clip:g}", f"must be at most max_difference={longest:g}"
    return None


def _obstacle_to_privacy(settings: Settings) -> str:
    """Return why no noise can be added with these settings, and the remedy; empty if none."""
    algorithm = settings.algorithm
    exchanges = "one" if takes_one_exchange(settings) else ALGORITHMS[algorithm].exchanges
    reasons = {
        "none": "releases nothing, so it needs no noise; leave it out",
        "several_first": "releases several sums over the duels of the first round; use"
        " first_round=step",
        "several": "releases many sums over all duels, each of which needs noise; use"
        " algorithm=fldb_ons with first_round=step",
    }
    if exchanges in reasons:
        return f"algorithm={algorithm} {reasons[exchanges]}"
    if settings.robust == "trimmed":
        return "robust=trimmed: a trimmed mean has no known sensitivity; use robust=none"
    if settings.mode == "devices" and not settings.devices.rounds:
        return "devices.rounds=0: the noise depends on the number of rounds; use a positive one"
    return ""


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
