"""What a setting needs of others to have an effect; see :func:`fldb_flower.settings.unused`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, AlgorithmEntry

Need = Callable[[Mapping[str, Any]], str]
"""Returns why a setting has no effect (``algorithm=ldb``), from all settings; empty if it has."""

NO_NOISE = "privacy.epsilon=none: no noise is added; set privacy.epsilon to a number"
"""Why other settings of privacy have no effect."""


def only(name: str, *values: Any) -> Need:
    """Need one of the given values of another setting."""

    def need(settings: Mapping[str, Any]) -> str:
        return _unless(settings.get(name, values[0]) in values, name, settings)

    return need


def algorithms(*names: str) -> Need:
    """Need one of the package's algorithms; what others use is not known."""

    def need(settings: Mapping[str, Any]) -> str:
        name = settings.get("algorithm")
        return _unless(name in names or not _is_own(name), "algorithm", settings)

    return need


def algorithm_with(test: Callable[[AlgorithmEntry], bool]) -> Need:
    """Need an algorithm with certain attributes."""

    def need(settings: Mapping[str, Any]) -> str:
        entry = ALGORITHMS.get(str(settings.get("algorithm")))
        return _unless(entry is None or test(entry), "algorithm", settings)

    return need


def environments(*names: str) -> Need:
    """Need one of the package's environments; what others use is not known."""

    def need(settings: Mapping[str, Any]) -> str:
        name = settings.get("environment.name")
        is_used = name in names or name in ENVIRONMENTS.added or name not in ENVIRONMENTS
        return _unless(is_used, "environment.name", settings)

    return need


scheduled = algorithm_with(lambda entry: entry.scheduled)


def simulation(settings: Mapping[str, Any]) -> str:
    """Need simulated agents; devices have real users."""
    return _unless(settings.get("mode") != "devices", "mode", settings)


def devices(settings: Mapping[str, Any]) -> str:
    """Need devices with real users."""
    return only("mode", "devices")(settings)


def private(settings: Mapping[str, Any]) -> str:
    """Need noise."""
    return "" if _is_private(settings) else NO_NOISE


def confidence(settings: Mapping[str, Any]) -> str:
    """Need W_sync and beta_t, by which agents select; FLDB-ONS uses them with a ``beta_scale``."""
    name = settings.get("algorithm")
    if name == "fldb_ons" and settings.get("beta_scale") == "auto":
        return "algorithm=fldb_ons and beta_scale=auto"
    return _unless(
        not _is_own(name) or ALGORITHMS[str(name)].agents in {"common", "local"},
        "algorithm",
        settings,
    )


def selected_pairs(settings: Mapping[str, Any]) -> str:
    """Need pairs that agents select; in predict they are those of the recorded duels."""
    return _unless(settings.get("environment.play") != "predict", "environment.play", settings)


def ridge(settings: Mapping[str, Any]) -> str:
    """Need lambda as the ridge of the loss, or in W_sync; FLDB-ONS has it in W_sync only."""
    is_ons = settings.get("algorithm") == "fldb_ons"
    return confidence(settings) or (selected_pairs(settings) if is_ons else "")


def bound_of_theory(settings: Mapping[str, Any]) -> str:
    """Need beta_t, for the selection of pairs or for the radius of FLDB-OGD's projection."""
    if settings.get("algorithm") == "fldb_ogd" and settings.get("projection_radius") == "auto":
        return ""
    return confidence(settings) or selected_pairs(settings)


def ridge_of_curvature(settings: Mapping[str, Any]) -> str:
    """Need FLDB-ONS, or the first step of FLDB-OGD with noise."""
    if settings.get("algorithm") == "fldb_ogd" and _is_private(settings):
        return ""
    return algorithms("fldb_ons")(settings)


def nodes(settings: Mapping[str, Any]) -> str:
    """Need nodes that exchange messages."""
    is_used = settings.get("mode") == "devices" or settings.get("engine.name") != "vectorized"
    return _unless(is_used, "engine.name", settings)


def longest_difference(settings: Mapping[str, Any]) -> str:
    """Need a use of max_difference: uploads are checked, limited, or encoded as integers."""
    return "" if settings.get("secure") or _is_private(settings) else nodes(settings)


def _is_private(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("privacy.epsilon", "none") != "none")


def _is_own(algorithm: Any) -> bool:
    return algorithm in ALGORITHMS and algorithm not in ALGORITHMS.added


def _unless(is_used: bool, name: str, settings: Mapping[str, Any]) -> str:
    return "" if is_used else f"{name.removesuffix('.name')}={settings.get(name)}"
