"""Rules between settings: what each needs to have an effect, and which do not go together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, AlgorithmEntry
from fldb_flower.errors import SettingsError
from fldb_flower.settings.entries import AUTO, NONE, RAY, entries_of

if TYPE_CHECKING:
    from fldb_flower.settings import Settings

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
_NO_NOISE = "privacy.epsilon=none: no noise is added; set privacy.epsilon to a number"
"""Why other settings of privacy have no effect."""

# --- what a setting needs --------------------------------------------------------------------

Need = Callable[[Mapping[str, Any]], str]
"""Returns why a setting has no effect (``algorithm=ldb``), from all settings; empty if it has."""


def _where(name: str, test: Callable[[Any], bool]) -> Need:
    """Need a value of another setting that passes a test; a missing one is no obstacle."""

    def need(settings: Mapping[str, Any]) -> str:
        value = settings.get(name)
        return "" if value is None or test(value) else f"{name.removesuffix('.name')}={value}"

    return need


def _only(name: str, *values: Any) -> Need:
    """Need one of the given values of another setting."""
    return _where(name, lambda value: value in values)


def _algorithms(*names: str) -> Need:
    """Need one of the package's algorithms; what others use is not known."""
    return _where("algorithm", lambda name: name in names or not _is_own(name))


def _algorithm_with(test: Callable[[AlgorithmEntry], bool]) -> Need:
    """Need an algorithm with certain attributes."""
    return _where("algorithm", lambda name: name not in ALGORITHMS or test(ALGORITHMS[name]))


def _environments(*names: str) -> Need:
    """Need one of the package's environments; what others use is not known."""
    return _where(
        "environment.name",
        lambda name: name in {*names, *ENVIRONMENTS.added} or name not in ENVIRONMENTS,
    )


_selected_pairs = _where("environment.play", lambda play: play != "predict")
"""Need pairs that agents select; in predict they are those of the recorded duels."""
_widths = _where(
    "algorithm", lambda name: not _is_own(name) or ALGORITHMS[name].agents in {"common", "local"}
)
_messages = _where("engine.name", lambda engine: engine != "vectorized")


def _private(settings: Mapping[str, Any]) -> str:
    return "" if _is_private(settings) else _NO_NOISE


def _confidence(settings: Mapping[str, Any]) -> str:
    """Need W_sync and beta_t, by which agents select; FLDB-ONS uses them with a ``beta_scale``."""
    if settings.get("algorithm") == "fldb_ons" and settings.get("beta_scale") == AUTO:
        return "algorithm=fldb_ons and beta_scale=auto"
    return _widths(settings)


def _ridge(settings: Mapping[str, Any]) -> str:
    """Need lambda as the ridge of the loss, or in W_sync; FLDB-ONS has it in W_sync only."""
    is_ons = settings.get("algorithm") == "fldb_ons"
    return _confidence(settings) or (_selected_pairs(settings) if is_ons else "")


def _bound_of_theory(settings: Mapping[str, Any]) -> str:
    """Need beta_t, for the selection of pairs or for the radius of FLDB-OGD's projection."""
    if settings.get("algorithm") == "fldb_ogd" and settings.get("projection_radius") == AUTO:
        return ""
    return _confidence(settings) or _selected_pairs(settings)


def _ridge_of_curvature(settings: Mapping[str, Any]) -> str:
    """Need FLDB-ONS, or the first step of FLDB-OGD with noise."""
    return _algorithms("fldb_ons", *(("fldb_ogd",) if _is_private(settings) else ()))(settings)


def _nodes(settings: Mapping[str, Any]) -> str:
    """Need nodes that exchange messages."""
    return "" if settings.get("mode") == "devices" else _messages(settings)


def _longest_difference(settings: Mapping[str, Any]) -> str:
    """Need a use of max_difference: uploads are checked, limited, or encoded as integers."""
    return "" if settings.get("secure") or _is_private(settings) else _nodes(settings)


def _is_private(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("privacy.epsilon", NONE) != NONE)


def _is_own(algorithm: Any) -> bool:
    return algorithm in ALGORITHMS and algorithm not in ALGORITHMS.added


_NEEDS: tuple[tuple[Need, str], ...] = (
    (_only("mode", "simulation"), "environment schedule num_arms tau checkpoint_seconds"),
    (_only("mode", "devices"), "devices"),
    (
        _only("secure", True),
        "devices.federation devices.helper devices.helper_key devices.helper_token",
    ),
    (_algorithm_with(lambda entry: entry.scheduled), "schedule tau"),
    (_only("schedule.name", "periodic"), "tau"),
    (_only("schedule.name", "geometric"), "schedule.ratio"),
    (_environments("synthetic"), "environment.sigma"),
    (_environments("movielens", "duels"), "environment.path"),
    (_environments("movielens"), "environment.users"),
    (
        _environments("duels"),
        "environment.play environment.max_people environment.min_answers",
    ),
    (_only("engine.name", "inprocess", "flower"), "engine.num_nodes"),
    (_only("engine.name", "flower"), "engine.num_cpus engine.num_gpus"),
    (_only("engine.name", "vectorized"), "engine.workers checkpoint_seconds"),
    (
        _private,
        "privacy.delta privacy.unit privacy.clip privacy.parties privacy.min_variance",
    ),
    (_algorithm_with(lambda entry: entry.agents != "uniform"), "selection"),
    (_algorithm_with(lambda entry: entry.agents in {"common", "local"}), "beta_scale"),
    (_algorithm_with(lambda entry: entry.agents in {"local", "personal"}), "refit_ratio"),
    (_algorithm_with(lambda entry: entry.agents == "common"), "matrix_form"),
    (
        _algorithm_with(lambda entry: entry.agents == "personal"),
        "privacy.min_variance personal_ridge personal_width",
    ),
    (_algorithm_with(lambda entry: entry.exchanges == "several_first"), "first_round"),
    (_algorithms("fldb_ogd"), "alpha step_index projection_center projection_radius"),
    (_algorithms("fldb_gd"), "solver gd_steps gd_step_size"),
    (_only("solver", "gd"), "gd_steps gd_step_size"),
    (_algorithms("fldb_ons"), "ons_width"),
    (_only("beta_scale", AUTO), "ons_width"),
    (_algorithms("fldb_personal"), "personal_variance"),
    (_ridge, "lambda"),
    (_ridge_of_curvature, "ons_ridge"),
    (_bound_of_theory, "kappa_mu delta"),
    (_selected_pairs, "selection beta_scale ons_width personal_width"),
    (_longest_difference, "max_difference"),
    (_nodes, "quorum node_wait reply_timeout max_message_mb"),
)
"""Needs, in the order in which reasons are given, and the settings or groups that have them."""


def unused(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings without effect on a run, by dotted name, each with the reason.

    ``values`` are settings by dotted name, as a file may have them: some may be missing or invalid.
    """
    reasons: dict[str, str] = {}
    for need, names in _NEEDS:
        if reason := need(values):
            reasons = dict.fromkeys(names.split(), reason) | reasons
    found = {name: reasons.get(name.partition(".")[0], reasons.get(name)) for name in values}
    return {name: reason for name, reason in found.items() if reason}


# --- values that follow from other settings --------------------------------------------------


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


# --- settings that do not go together --------------------------------------------------------

Problems = Iterator[tuple[str, str]]
"""Settings with their values, each with the rest of the error message."""


def check_together(settings: Settings, source: str) -> None:
    """Raise a SettingsError if two settings are incompatible."""
    checks = (
        _engine_problems, _algorithm_problems, _environment_problems, _secure_problems,
        _privacy_problems,
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
            reason = f"with solver=newton needs full Hessians, of d^2 numbers; {remedy}"
        if reason:
            yield f"matrix_form={settings.matrix_form!r}", f"algorithm={name} {reason}"


def _environment_problems(settings: Settings) -> Problems:
    environment, name = settings.environment, settings.environment.name
    for own, owner in ENVIRONMENT_OF.items():
        value = getattr(environment, own)
        if name != owner and value != getattr(type(environment), own):
            yield f"environment.{own}={value!r}", f"needs environment={owner}, not {name}"
    if name != "movielens":
        return
    for key, most, reason in (
        ("dimension", MOVIELENS_DIMENSIONS, "whose features are the SVD of 20 users' ratings"),
        ("num_arms", MOVIELENS_ITEMS, "its number of items"),
    ):
        if (number := getattr(settings, key)) > most:
            yield f"{key}={number}", f"must be at most {most} for MovieLens, {reason}"
    if not environment.path:
        reason = "set it to the downloaded MovieLens ratings, a file, a folder or the zip"
        yield "environment.path is empty", reason


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
            "none": "releases nothing, so it needs no noise; leave it out",
            "several_first": "releases several sums over the duels of the first round; use"
            " first_round=step",
            "several": "releases many sums over all duels, each of which needs noise; use"
            " algorithm=fldb_ons with first_round=step",
        }[settings.exchanges]
        yield epsilon, f"algorithm={name} {reason}"
    if settings.robust == "trimmed":
        reason = "a trimmed mean has no known sensitivity; use robust=none"
        yield epsilon, f"robust=trimmed: {reason}"
    if is_devices and not settings.devices.rounds:
        reason = "the noise depends on the number of rounds; use a positive one"
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
        reason = f"a number for {where}, or max_difference as a number: the noise is proportional"
        yield "privacy.clip='auto'", f"must be {reason} to this length"
    elif longest != AUTO and clip > float(longest):
        yield f"privacy.clip={clip:g}", f"must be at most max_difference={longest:g}"
