"""Rules between settings: which have no effect, and which are incompatible."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS
from fldb_flower.errors import SettingsError
from fldb_flower.settings.entries import AUTO, NONE, RAY, entries_of

if TYPE_CHECKING:
    from fldb_flower.settings import Settings

MOVIELENS_ITEMS = 200  # the items with most ratings; also the number of users
MOVIELENS_DIMENSIONS = 20  # users whose ratings define the features

_NUMBERS = {"num_agents": 100, "horizon": 500, "dimension": 5}
"""Values of settings that are auto, unless the environment's data determine them."""
ENVIRONMENT_OF = {
    "users": "movielens", "like": "movielens", "play": "duels", "scale": "duels",
    "max_people": "duels", "min_answers": "duels", "change": "changing",
    "change_at": "changing", "drift": "changing",
}  # fmt: skip
"""Settings of one environment only."""
NORMAL = ("synthetic", "changing")
"""Environments whose arms are drawn from N(0, I)."""
SELECTION_SETTINGS = (
    "algorithm", "selection", "kappa_mu", "delta", "beta_scale", "ons_width", "lambda_",
    "matrix_form", "personal_ridge", "personal_width", "half_life",
)  # fmt: skip
"""Settings of the server's run with which a device selects pairs of arms."""
_NO_NOISE = "privacy.epsilon=none: no noise is added; set privacy.epsilon to a number"
"""Why other settings of privacy have no effect."""

# --- settings without effect -----------------------------------------------------------------


def unused(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings without effect on a run, by dotted name, each with the reason.

    ``values`` are settings by dotted name, as a file may have them: some may be missing or invalid.
    """
    reasons: dict[str, str] = {}
    for names, reason in (*_without_effect(values), *_without_effect_on(values)):
        if reason:
            reasons = dict.fromkeys(names.split(), reason) | reasons  # the first reason counts
    found = {name: reasons.get(name.partition(".")[0], reasons.get(name)) for name in values}
    return {name: reason for name, reason in found.items() if reason}


def _other(values: Mapping[str, Any], name: str, *valid: Any) -> str:
    """Return ``name=value`` as a reason if the setting has none of the valid values, else ""."""
    value = values.get(name)
    return "" if value is None or value in valid else f"{name.removesuffix('.name')}={value}"


def _without_effect(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield settings and groups, each with the reason why it has no effect, or "" if it has one."""
    other = partial(_other, values)
    yield "environment schedule num_arms tau checkpoint_seconds", other("mode", "simulation")
    yield "devices", other("mode", "devices")
    secure = "devices.federation devices.helper devices.helper_key devices.helper_token"
    yield secure, other("secure", True)
    scheduled = (name for name, entry in ALGORITHMS.items() if entry.scheduled)
    if values.get("algorithm") in ALGORITHMS:
        yield "schedule tau", other("algorithm", *scheduled)
    yield "tau", other("schedule.name", "periodic")
    yield "schedule.ratio", other("schedule.name", "geometric")
    if values.get("environment.name") in ENVIRONMENTS.keys() - ENVIRONMENTS.added:
        for names, *valid in (
            ("environment.sigma environment.directions environment.clusters", *NORMAL),
            ("environment.change environment.change_at environment.drift", "changing"),
            ("environment.path", "movielens", "duels"),
            ("environment.users environment.like", "movielens"),
            ("environment.play environment.max_people environment.min_answers", "duels"),
            ("environment.scale", "duels"),
        ):
            yield names, other("environment.name", *valid)
    yield "engine.num_nodes", other("engine.name", "inprocess", "flower")
    yield "engine.num_cpus engine.num_gpus", other("engine.name", "flower")
    yield "engine.workers checkpoint_seconds", other("engine.name", "vectorized")
    nodes = other("engine.name", "inprocess", "flower")
    if values.get("mode") == "devices":
        nodes = ""
    yield "quorum node_wait reply_timeout max_message_mb", nodes
    if values.get("privacy.epsilon", NONE) == NONE:
        noise = "privacy.delta privacy.unit privacy.clip privacy.parties privacy.min_variance"
        yield noise, _NO_NOISE
        if not values.get("secure"):  # otherwise, uploads are limited, or encoded as integers
            yield "max_difference", nodes


def _without_effect_on(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the same for settings of single algorithms; a registered one may use any of them."""
    name, other = values.get("algorithm"), partial(_other, values)
    this, entry = f"algorithm={name}", ALGORITHMS.get(str(name))
    is_own = entry is not None and name not in ALGORITHMS.added
    not_selected = "" if values.get("environment.play") != "predict" else "environment.play=predict"
    for names, kinds in (
        ("selection", {"common", "local", "personal", "pooled"}),
        ("beta_scale", {"common", "local", "pooled"}),
        ("refit_ratio", {"local", "personal"}),
        ("matrix_form", {"common"}),
        ("privacy.min_variance personal_ridge personal_width", {"personal"}),
    ):
        yield names, this if entry and entry.agents not in kinds else ""
    yield "first_round", this if entry and entry.exchanges != "several_first" else ""
    yield "tau", this if name == "fldb_gd" else ""  # a round is one iteration, or geometric
    is_private = values.get("privacy.epsilon", NONE) != NONE
    for names, *own in (
        ("alpha step_index projection_center projection_radius", "fldb_ogd"),
        ("solver gd_steps gd_step_size", "fldb_gd"),
        ("ons_width", "fldb_ons"),
        ("personal_variance personal_structure", "fldb_personal"),
        ("coldb_edge", "coldb"),
        ("ons_ridge", "fldb_ons", *["fldb_ogd"] * is_private),  # the first step of FLDB-OGD
    ):
        yield names, this if is_own and name not in own else ""
    fixed = "privacy.epsilon" if is_private else "personal_variance"
    if values.get(fixed, AUTO) not in {AUTO, NONE}:  # V is v I then
        yield "personal_structure", f"{fixed}={values[fixed]:g}"
    yield "gd_steps gd_step_size", other("solver", "gd")
    yield "ons_width", other("beta_scale", AUTO)
    # W_sync and beta_t, by which agents select; FLDB-ONS uses them with a beta_scale.
    confidence = this if is_own and entry and entry.agents in {"personal", "uniform"} else ""
    if name == "fldb_ons" and values.get("beta_scale") == AUTO:
        confidence = "algorithm=fldb_ons and beta_scale=auto"
    # FLDB-ONS has lambda in W_sync only, and the others in their loss.
    yield "lambda", confidence or (not_selected if name == "fldb_ons" else "")
    if name != "fldb_ogd" or values.get("projection_radius") != AUTO:  # a radius of the theory
        yield "kappa_mu delta", confidence or not_selected
    yield "selection beta_scale ons_width personal_width environment.scale", not_selected


# --- values that follow from other settings --------------------------------------------------


def automatic(settings: Settings) -> dict[str, Any]:
    """Return the values of settings that are auto, by name; DataError if the data are invalid."""
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


# --- incompatible settings --------------------------------------------------------------------

Problems = Iterator[tuple[str, str]]
"""Settings with their values, each with the rest of the error message."""


def check_together(settings: Settings, source: str) -> None:
    """Raise a SettingsError if two settings are incompatible."""
    checks = (
        _engine_problems, _algorithm_problems, _structure_problems, _environment_problems,
        _secure_problems, _privacy_problems,
    )  # fmt: skip
    for setting, reason in (problem for check in checks for problem in check(settings)):
        raise SettingsError(f"{setting} (from {source}): {reason}")


def _engine_problems(settings: Settings) -> Problems:
    nodes, agents, engine = settings.engine.num_nodes, settings.num_agents, settings.engine.name
    workers, backend = settings.engine.workers, settings.backend
    if engine != "vectorized" and nodes > agents:
        reason = f"at most num_agents={agents}, because each node hosts at least one agent"
        yield f"engine.num_nodes={nodes}", f"must be {reason}"
    if settings.dropout > 0 and engine != "inprocess":
        yield f"dropout={settings.dropout:g}", f"needs engine=inprocess, not engine={engine}"
    if workers != AUTO and engine != "vectorized":
        yield f"engine.workers={workers}", f"needs engine=vectorized, not engine={engine}"
    if workers == RAY and backend != "numpy":
        yield "engine.workers=ray", f"needs backend=numpy, not backend={backend}"
    name = settings.algorithm
    if ALGORITHMS[name].agents == "pooled" and engine != "vectorized":
        reason = "its server sees the duels of all agents, which no message contains"
        yield f"algorithm={name!r}", f"needs engine=vectorized, not engine={engine}: {reason}"
    if settings.rng == "torch" and backend == "numpy":
        yield "rng='torch'", "needs backend=cpu or backend=cuda, not backend=numpy"


def _algorithm_problems(settings: Settings) -> Problems:
    name = settings.algorithm
    online = [each for each, entry in ALGORITHMS.items() if entry.online]
    robust = [each for each in online if ALGORITHMS[each].agents == "common"]
    able = [each for each, entry in ALGORITHMS.items() if entry.exchanges == "several_first"]
    for key, value, valid in (("robust", "trimmed", robust), ("first_round", "step", able)):
        if getattr(settings, key) == value and name not in valid:
            yield f"{key}={value!r}", f"needs algorithm {' or '.join(valid)}, not {name}"
    forgetting = [
        each for each, entry in ALGORITHMS.items()
        if entry.agents in {"local", "personal"} or each == "fldb_ons"
    ]  # fmt: skip
    if settings.decay is not None:
        half_life = f"half_life={settings.half_life:g}"
        if name not in forgetting:
            yield half_life, f"needs algorithm {' or '.join(forgetting)}, not {name}"
        if name == "fldb_ons" and settings.mode == "devices":
            reason = "the number of answers per device is not known in mode=devices"
            yield half_life, f"algorithm=fldb_ons: {reason}; use algorithm=fldb_personal"
        if settings.refit_ratio != 1:
            yield f"refit_ratio={settings.refit_ratio:g}", f"must be 1 with {half_life}"
    if settings.mode == "devices" and name not in online:
        reason = "the others need every device in every round, or no server"
        names = f"must be one of {', '.join(online)} with mode=devices"
        yield f"algorithm={name!r}", f"{names}: {reason}"
    if settings.matrix_form != "full":
        reason = {
            "personal": "needs full matrices; use matrix_form=full",
            "local": "sends no matrices; its agents keep full ones",
        }.get(ALGORITHMS[name].agents, "")
        if name == "fldb_gd" and settings.solver == "newton":
            remedy = "use solver=lbfgs or solver=gd"
            reason = f"with solver=newton needs full Hessians (d^2 numbers); {remedy}"
        if reason:
            yield f"matrix_form={settings.matrix_form!r}", f"algorithm={name} {reason}"


def _structure_problems(settings: Settings) -> Problems:
    if settings.personal_structure != "learned" or settings.algorithm != "fldb_personal":
        return
    if settings.personal_variance != AUTO:
        value = f"personal_variance={settings.personal_variance:g}"
        yield value, "personal_structure=learned estimates v: use personal_variance=auto"
    if settings.is_private:
        remedy = "use personal_structure=isotropic or auto"
        yield "personal_structure='learned'", f"not with privacy.epsilon: {remedy}"


def _environment_problems(settings: Settings) -> Problems:
    environment, name = settings.environment, settings.environment.name
    for own, owner in ENVIRONMENT_OF.items():
        value = getattr(environment, own)
        if name != owner and value != getattr(type(environment), own):
            yield f"environment.{own}={value!r}", f"needs environment={owner}, not {name}"
    if name in NORMAL:
        yield from _group_problems(settings)
    if name != "movielens":
        return
    for key, most, reason in (
        ("dimension", MOVIELENS_DIMENSIONS, "whose features are the SVD of 20 users' ratings"),
        ("num_arms", MOVIELENS_ITEMS, "of which 200 items are used"),
    ):
        if (number := getattr(settings, key)) > most:
            yield f"{key}={number}", f"must be at most {most} for MovieLens, {reason}"
    if not environment.path:
        reason = "set it to the downloaded MovieLens ratings (a file, a folder or the zip)"
        yield "environment.path is empty", reason


def _group_problems(settings: Settings) -> Problems:
    """Yield problems of the settings by which simulated agents differ."""
    chosen = settings.environment
    for own, most in (("directions", "dimension"), ("clusters", "num_agents")):
        given = f"environment.{own}={(number := getattr(chosen, own))}"
        if number > (limit := getattr(settings, most)):
            yield given, f"must be at most {most}={limit}"
        if number and not chosen.sigma:
            yield given, "needs environment.sigma above 0: without it, agents do not differ"
    if chosen.directions and chosen.clusters:
        reason = "agents in clusters differ in all directions; use environment.directions=0"
        yield f"environment.clusters={chosen.clusters}", reason


def _secure_problems(settings: Settings) -> Problems:
    if not settings.secure:
        return
    if settings.mode != "devices":
        reason = "needs mode=devices, with a helper; simulate its noise with privacy.epsilon=3"
        yield "secure=true", f"{reason} privacy.parties=2, or try `fldb demo --secure`"
    if not settings.is_private:
        reason = (
            "needs privacy.epsilon, because a sum without noise can be one person's answer; for"
        )
        reason += " small groups use secure=false: connections are encrypted, and the server's"
        yield "secure=true", f"{reason} operator can read uploads"
    file = "absolute path of this file on the server"
    valid = {"helper": "address of the helper, like https://helper.example"}
    for name, what in (valid | {"helper_key": file, "helper_token": file}).items():
        text = getattr(settings.devices, name)
        if not (re.match("https?://", text) if name in valid else Path(text).is_absolute()):
            given = f"={text!r}" if text else " is empty"
            yield f"devices.{name}{given}", f"secure=true needs the {what}"


def _privacy_problems(settings: Settings) -> Problems:
    privacy, is_devices = settings.privacy, settings.mode == "devices"
    if not settings.is_private:
        group: type = type(privacy)
        for entry in entries_of(group):
            value = entry.value(settings)
            if is_devices and value != entry.default:  # statistics would have no noise
                reason = f"has no effect with {_NO_NOISE}, or leave this setting out"
                yield f"{entry.dotted}={value!r}", reason
        return
    name, epsilon = settings.algorithm, f"privacy.epsilon={privacy.epsilon:g}"
    if settings.exchanges != "one":
        reason = {
            "none": "releases nothing, so it needs no noise; leave this setting out",
            "several_first": "releases several sums over the duels of the first round; use"
            " first_round=step",
            "several": "releases many sums over all duels, each of which needs noise; use"
            " algorithm=fldb_ons with first_round=step",
        }[settings.exchanges]
        if ALGORITHMS[name].agents == "pooled":
            reason = "has no sums to add noise to: its server sees each duel"
        yield epsilon, f"algorithm={name} {reason}"
    if settings.robust == "trimmed":
        reason = "a trimmed mean has no known sensitivity; use robust=none"
        yield epsilon, f"robust=trimmed: {reason}"
    if is_devices and not settings.devices.rounds:
        reason = "the noise depends on the number of rounds; set a positive number"
        yield epsilon, f"devices.rounds=0: {reason}"
    if privacy.unit == "answer" and (is_devices or ALGORITHMS[name].agents != "common"):
        reason = f"algorithm={name}: an agent's answers determine which arms it shows later, and"
        reason += " its later uploads"
        if ALGORITHMS[name].agents == "common":
            reason = "mode=devices: a device selects arms with answers that no round has counted"
            reason += " yet"
        yield "privacy.unit='answer'", f"{reason}; use privacy.unit=person"
    clip, longest = settings.clip, settings.max_difference
    if clip is None:
        where = "mode=devices" if is_devices else settings.environment.name
        reason = f"a number for {where}, unless max_difference is one: the noise is proportional"
        yield "privacy.clip='auto'", f"must be {reason} to this length"
    elif longest != AUTO and clip > float(longest):
        yield f"privacy.clip={clip:g}", f"must be at most max_difference={longest:g}"
