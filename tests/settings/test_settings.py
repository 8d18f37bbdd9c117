"""Settings: checks, the two spellings, and error messages."""

import dataclasses
import math
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.errors import SettingsError
from fldb_flower.settings import (
    AUTO,
    ENVIRONMENT_OF,
    DevicesSettings,
    EngineSettings,
    EnvironmentSettings,
    PrivacySettings,
    ScheduleSettings,
    Settings,
    entries,
    flower_entries,
    from_flat,
    from_nested,
    hydra_entries,
    to_dotted,
    to_flat,
    unflatten,
)

SOURCE = "the test's file"
ALL = {entry.dotted: entry for entry in entries()}
NUMBERS = {name: entry for name, entry in ALL.items() if entry.kind in (int, float)}
WHOLE = {name: entry for name, entry in NUMBERS.items() if entry.kind is int}
REAL = {name: entry for name, entry in NUMBERS.items() if entry.kind is float}
NAMES = {name: entry for name, entry in ALL.items() if entry.choices}
SWITCHES = {name: entry for name, entry in ALL.items() if entry.kind is bool}
TEXTS = {name: entry for name, entry in ALL.items() if name not in {*NUMBERS, *NAMES, *SWITCHES}}

property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=100)


def check(entry, value):
    return entry.check(value, entry.dotted, SOURCE)


def refused(entry, value):
    """Return the error message of a refused value."""
    with pytest.raises(SettingsError) as error:
        check(entry, value)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{entry.dotted}=")
    assert SOURCE in message
    return message


def nested(dotted, value):
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return value


RESOLVED = {"num_agents": 100, "horizon": 500, "dimension": 5}
"""Settings that are never auto once they are built, and their defaults."""


# --- declarations --------------------------------------------------------------------------


def test_every_declared_field_is_an_entry():
    def count(cls):
        return sum(
            count(field.default_factory) if field.default_factory is not dataclasses.MISSING else 1
            for field in dataclasses.fields(cls)
        )

    assert count(Settings) == len(list(entries())) == len(ALL)
    assert set(ALL) == {*NUMBERS, *NAMES, *SWITCHES, *TEXTS}


def test_every_default_is_valid_and_has_a_description():
    for name, entry in ALL.items():
        checked = check(entry, entry.default)
        assert checked == entry.default
        assert type(checked) is type(entry.default)
        assert len(entry.help) > 5
        assert entry.value(Settings()) == RESOLVED.get(name, entry.default)


def test_both_spellings_are_unique():
    for spelling in ("dotted", "kebab"):
        names = [getattr(entry, spelling) for entry in entries()]
        assert len(set(names)) == len(names)
    for entry in entries():
        assert entry.kebab == entry.kebab.lower()
        assert not set(entry.kebab) & set("._ ")


def test_the_spellings_by_hand():
    spelled = {name: entry.kebab for name, entry in ALL.items()}
    assert spelled["num_agents"] == "num-agents"
    assert spelled["environment.name"] == "environment"
    assert spelled["environment.sigma"] == "environment-sigma"
    assert spelled["schedule.name"] == "schedule"
    assert spelled["lambda"] == "lambda"
    assert ALL["lambda"].field == "lambda_"


def test_the_run_config_of_flower_declares_exactly_the_settings():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    tool = tomllib.loads(text)["tool"]["flwr"]
    declared = tool["app"]["config"]
    expected = {entry.kebab: entry.default for entry in flower_entries()}
    assert declared == expected
    for key, value in declared.items():
        # Flower fixes a setting's type by its default: an integer would refuse a user's 0.5.
        assert type(value) is type(expected[key]), key
    assert from_flat(declared, "pyproject.toml") == Settings()
    assert "federations" not in tool  # Flower 1.42 rewrites it


def test_every_setting_reaches_hydra_or_flower():
    hydra, flower = ({entry.dotted for entry in some()} for some in (hydra_entries, flower_entries))
    assert hydra | flower == set(ALL)
    devices = {
        "rounds", "round_seconds", "at_least", "first_duels", "max_duels", "federation", "helper",
        "helper_key", "helper_token",
    }  # fmt: skip
    only_flower = {"output_dir", "mode", *(f"devices.{name}" for name in devices)}
    assert set(ALL) - hydra == only_flower
    only_hydra = {"engine", "dropout"}
    assert {name.split(".")[0] for name in set(ALL) - flower} == only_hydra


# --- checks of one setting -----------------------------------------------------------------


def test_a_number_of_the_wrong_type_is_refused():
    for name, entry in NUMBERS.items():
        for value in [
            *["5", "", None, [1], {"a": 1}, True, False, 1j, math.nan, math.inf, -math.inf],
            10**400,
        ]:
            message = refused(entry, value)
            assert message.startswith(f"{name}={value!r}"[:100])
            assert ("a whole number" if name in WHOLE else "a number") in message


def test_integers_must_be_whole_numbers():
    for name, entry in WHOLE.items():
        message = refused(entry, 1.5)
        assert f"{name}=1.5" in message
        assert f"at least {entry.limits.minimum:g}" in message
        number = 2 if name == "privacy.parties" else 7
        checked = check(entry, float(number))  # users may write 1000 as 1e3
        assert (checked, type(checked)) == (number, int)
        assert refused(entry, -1)


def test_a_toml_integer_is_accepted_as_a_number():
    for name in sorted({*REAL} - {"delta", "privacy.delta"}):
        number = 2 if name == "schedule.ratio" else 1
        checked = check(REAL[name], number)
        assert (checked, type(checked)) == (number, float)


MEANINGFUL = {
    # name: (numbers without a meaning, numbers with one)
    "num_agents": ([0, -3], [1, 10**6]),
    "horizon": ([0, 2**63, 1e30], [1, 10**13]),
    "num_arms": ([1, 0, -2], [2, 1000]),
    "dimension": ([0], [1, 1000]),
    "tau": ([0, -1], [1, 10**9]),
    "seed": ([-1, 2**63], [0, 2**40]),
    "environment.sigma": ([-0.1, 1e306], [0, 0.5]),
    "schedule.ratio": ([1, 0.5, -2], [1.0001, 2]),
    "dropout": ([-0.1, 1.1], [0, 1]),
    "fraction_train": ([0, 1.1], [0.1, 1]),
    "quorum": ([0, 1.01, -0.5], [0.01, 1]),
    "lambda": ([0, -1.0], [1e-9, 5]),
    "kappa_mu": ([0, -1], [1e-9, 0.25]),
    "delta": ([0, 1, 1.5, -0.1], [1e-9, 0.999]),
    "beta_scale": ([-1e-9], [0, 3]),
    "ons_width": ([-1e-9], [0, 3]),
    "alpha": ([0, -5], [1e-3]),
    "node_wait": ([0, -1], [0.05]),
}


def test_meaningful_numbers_are_accepted_and_others_refused():
    for name in MEANINGFUL:
        entry = NUMBERS[name]
        for build in (in_python, replaced, lambda name, value: check(NUMBERS[name], value)):
            for value in MEANINGFUL[name][0]:
                shown = int(value) if name in WHOLE else float(value)
                with pytest.raises(SettingsError, match=r"must be (at least|above)") as error:
                    build(name, value)
                assert f"={shown!r} (from" in str(error.value)
        for value in MEANINGFUL[name][1]:
            assert check(entry, value) == value
            if name != "dropout":  # which requires another setting
                assert entry.value(in_python(name, value)) == value


def neighbors(number, entry):
    """Return the numbers next to a limit, below and above it."""
    if entry.kind is int:
        return number - 1, number + 1
    return math.nextafter(number, -math.inf), math.nextafter(number, math.inf)


def test_every_number_is_bounded_by_the_limits_in_the_message():
    """No number can overflow: every accepted number is between two stated limits."""
    for entry in NUMBERS.values():
        limits = entry.limits
        lower, upper = limits.minimum, limits.maximum
        is_open, is_open_above = lower == limits.excluded, upper == limits.excluded
        outside = [neighbors(lower, entry)[0], neighbors(upper, entry)[1]]
        inside = [neighbors(lower, entry)[1], neighbors(upper, entry)[0]]
        (outside if is_open else inside).append(lower)
        (outside if is_open_above else inside).append(upper)
        words = (str(limits).split(" and ")[0], "below" if is_open_above else "at most")
        assert words[0] == f"{'above' if is_open else 'at least'} {lower:g}"
        for value in outside:
            message = refused(entry, value)
            assert all(each in message for each in words)
        for value in inside:
            assert check(entry, value) == value


def test_a_reason_is_added_and_the_largest_integer_is_readable():
    assert refused(ALL["num_arms"], 1).endswith("(a duel needs two arms)")
    assert "at most 9.2e18" in refused(ALL["horizon"], 2**63)


def test_auto_is_accepted_only_for_derived_settings():
    for name, entry in REAL.items():
        if name in {
            "lambda", "beta_scale", "projection_radius", "gd_step_size", "max_difference",
            "personal_variance", "privacy.clip",
        }:  # fmt: skip
            assert check(entry, AUTO) == AUTO
            assert refused(entry, "automatic").endswith(
                ("or auto", "or auto (W_0 = (lambda / kappa_mu) I must be invertible)")
            )
        else:
            refused(entry, AUTO)


def test_unknown_choices_are_refused():
    for name, entry in NAMES.items():
        for value in ["", "nonsense", 3, 1.5, True, None, ["fldb_ogd"]]:
            message = refused(entry, value)
            assert message.startswith(f"{name}={value!r}"[:100])
            for choice in entry.choices:
                assert choice in message


def test_choices_are_accepted_in_both_spellings():
    for entry in NAMES.values():
        for choice in entry.choices:
            assert check(entry, choice) == choice
            assert check(entry, choice.replace("_", "-")) == choice


def test_a_text_setting_refuses_other_types():
    for entry in TEXTS.values():
        for value in [3, 1.5, True, None, ["a"]]:
            assert "a text" in refused(entry, value)
            assert check(entry, "/some/folder") == "/some/folder"


def test_a_switch_accepts_only_booleans():
    for entry in SWITCHES.values():
        for value in [0, 1, 1.0, "true", "false", "", None, []]:
            assert "true or false" in refused(entry, value)
            for answer in (True, False):
                assert check(entry, answer) is answer


# --- unknown settings, and settings that do not go together --------------------------------


def test_builders_check_every_value():
    for name in ["num_agents", "environment.sigma", "algorithm"]:
        with pytest.raises(SettingsError, match=rf"^{name}=-1(\.0)? \(from x\)"):
            from_nested(nested(name, -1), "x")
        key = ALL[name].kebab  # the message uses the spelling of the user
        with pytest.raises(SettingsError, match=rf"^{key}=-1(\.0)? \(from x\)"):
            from_flat({key: -1}, "x")


MOVIELENS = {"name": "movielens", "path": "ml-100k.zip"}


def test_compatible_settings_at_the_limit_are_accepted():
    for values in [
        {"dimension": 20, "num_arms": 200, "environment": MOVIELENS},
        {"dimension": 21, "num_arms": 201},
        {"num_agents": 4, "engine": {"name": "inprocess", "num_nodes": 4}},
        {"num_agents": 1, "engine": {"name": "vectorized", "num_nodes": 2}},
    ]:
        assert isinstance(from_nested(values, "x"), Settings)


def test_the_first_round_is_one_exchange_with_privacy():
    for algorithm, epsilon, expected in [
        ("fldb_ons", "none", "minimise"),
        ("fldb_ons", 3.0, "step"),
        ("fldb_ogd", 3.0, "step"),
        ("fldb_personal", 3.0, "minimise"),
        ("fldb_gd", "none", "minimise"),
    ]:
        values = {"algorithm": algorithm, "privacy": {"epsilon": epsilon}}
        assert from_nested(values, "x").takes_first_step == (expected == "step")


def test_empty_settings_are_the_defaults():
    assert from_flat({}, SOURCE) == from_nested({}, SOURCE) == Settings()


def test_the_ridge_is_one_over_the_horizon_unless_given():
    assert from_nested({"horizon": 250}, SOURCE).ridge == 1 / 250
    assert from_nested({"horizon": 250, "lambda": 3}, SOURCE).ridge == 3.0


# --- settings built in Python --------------------------------------------------------------

GROUPS = {
    "environment": EnvironmentSettings,
    "schedule": ScheduleSettings,
    "engine": EngineSettings,
    "devices": DevicesSettings,
    "privacy": PrivacySettings,
}


def in_python(name, value):
    """Build the group of a setting, and settings with this group."""
    entry = ALL[name]
    *group, _ = entry.path
    if not group:
        return Settings(**{entry.field: value})
    return Settings(**{group[0]: GROUPS[group[0]](**{entry.field: value})})


def test_numbers_are_checked_in_python_too():
    for name in NUMBERS:
        for value in ["5", True, None, math.nan, math.inf, -math.inf, 10**400]:
            for build in (in_python, replaced):
                with pytest.raises(SettingsError, match=r"=.* \(from Python\): ") as error:
                    build(name, value)
                assert str(error.value).startswith(f"{ALL[name].attribute}=")


def replaced(name, value):
    entry = ALL[name]
    *group, _ = entry.path
    changed = {entry.field: value}
    if group:
        changed = {group[0]: dataclasses.replace(getattr(Settings(), group[0]), **changed)}
    return dataclasses.replace(Settings(), **changed)


def test_names_are_checked_in_python_too():
    for name in NAMES:
        for value in ("", "nonsense", 3, None, ["fldb_ogd"], np.array([1, 2])):
            with pytest.raises(SettingsError, match="must be one of") as error:
                in_python(name, value)
            assert "\n" not in str(error.value)
        assert isinstance(in_python(name, ALL[name].default.upper()), Settings)


def test_spellings_from_papers_are_accepted_in_python():
    assert Settings(algorithm="FLDB-ONS").algorithm == "fldb_ons"
    assert Settings(algorithm="fldb-gd").algorithm == "fldb_gd"
    assert Settings(selection="MaxPairUCB").selection == "maxpairucb"


def test_numbers_of_other_libraries_are_converted():
    for number, kept in [
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (np.float64(7.0), 7),
        (np.float32(7.0), 7),
        (7.0, 7),
        (Fraction(14, 2), 7),
    ]:
        settings = Settings(tau=number, alpha=number)
        assert (settings.tau, type(settings.tau)) == (kept, int)
        assert (settings.alpha, type(settings.alpha)) == (kept, float)


class Unprintable:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [Unprintable(), 10**5000, np.zeros((3, 3)), np.bool_(True), object(), "a\nb", 1j],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("name", ["tau", "algorithm", "environment", "environment.path", "resume"])
def test_any_invalid_value_gives_a_one_line_error(name, value):
    if (name, value if isinstance(value, str) else "") == ("environment.path", "a\nb"):
        return  # any path is valid
    build = in_python if name in ALL else lambda name, value: Settings(**{name: value})
    with pytest.raises(SettingsError) as error:
        build(name, value)
    assert str(error.value).startswith(f"{name}=")
    assert str(error.value).isprintable()


def test_a_group_must_have_its_type():
    with pytest.raises(SettingsError) as error:
        Settings(schedule="geometric")
    expected = "schedule='geometric' (from Python): must be ScheduleSettings(...)"
    assert str(error.value) == expected
    with pytest.raises(SettingsError, match=r"must be EnvironmentSettings"):
        Settings(environment=EngineSettings())


def test_incompatible_settings_are_refused_in_python():
    with pytest.raises(SettingsError, match=r"engine.num_nodes=4 \(from Python\)"):
        Settings(num_agents=3, engine=EngineSettings("inprocess", num_nodes=4))


def test_the_origin_is_reset_after_an_error():
    with pytest.raises(SettingsError, match=r"num-agents=0 \(from a file\)"):
        from_flat({"num-agents": 0}, "a file")
    with pytest.raises(SettingsError, match=r"num_agents=0 \(from Python\)"):
        Settings(num_agents=0)


# --- round trips ---------------------------------------------------------------------------


def value_of(entry):
    """Return a strategy for the accepted values of an entry."""
    limits = entry.limits
    if entry.choices:
        return st.sampled_from(list(entry.choices))
    if entry.kind is int:
        numbers = st.integers(limits.minimum, limits.maximum)
    elif entry.kind is float:
        numbers = st.floats(
            limits.minimum,
            limits.maximum,
            exclude_min=limits.minimum == limits.excluded,
            exclude_max=limits.maximum == limits.excluded,
        )
    else:
        return st.booleans() if entry.kind is bool else st.text(max_size=20)
    is_kept = isinstance(entry.default, str) and entry.dotted not in RESOLVED
    return st.one_of(st.just(entry.default), numbers) if is_kept else numbers


def valid(some):
    """Return a strategy for valid settings, with one value for each entry in ``some``."""
    return st.fixed_dictionaries({entry.dotted: value_of(entry) for entry in some}).map(together)


def fit_environment(values):
    if values.get("environment.name") == "duels":  # needs a study; see test_duels_environment.py
        values["environment.name"] = "synthetic"
    for own, owner in ENVIRONMENT_OF.items():
        if f"environment.{own}" in values and values["environment.name"] != owner:
            values[f"environment.{own}"] = ALL[f"environment.{own}"].default
    if values.get("environment.name") == "movielens":
        values["dimension"] = values["dimension"] % 20 + 1
        values["num_arms"] = values["num_arms"] % 199 + 2
        values["environment.path"] = values["environment.path"] or "u.data"


def fit_privacy(values):
    """Use no privacy with settings that refuse it, and fit the length that clips."""
    able = values["algorithm"] == "fldb_personal" or values["first_round"] == "step"
    if not (able and values["robust"] == "none"):
        values["privacy.epsilon"] = "none"
    if values["privacy.epsilon"] == "none":
        values |= {name: ALL[name].default for name in values if name.startswith("privacy.")}
        return
    if values["algorithm"] == "fldb_personal" or values.get("mode") == "devices":
        values["privacy.unit"] = "person"
    if values["max_difference"] == AUTO:
        values["privacy.clip"] = 2.5
    else:
        values["privacy.clip"] = AUTO


def together(values):
    if values.get("backend", "numpy") == "numpy":
        values["rng"] = "numpy"
    fit_environment(values)
    if values.get("mode") == "devices" and values["algorithm"] != "fldb_ogd":
        values["algorithm"] = "fldb_ons"
    if values["algorithm"] not in ("fldb_ogd", "fldb_ons"):
        values |= {"robust": "none", "first_round": "minimise"}
    if "secure" in values:
        values["secure"] = False  # it needs a helper
    if values["algorithm"] in {"ldb", "alone", "fldb_personal"} or values["dimension"] < 3:
        values["matrix_form"] = "full"
    if values["matrix_form"] != "full" and values["solver"] == "newton":
        values["solver"] = "gd"
    fit_privacy(values)
    if "engine.name" in values and values["engine.name"] != "inprocess":
        values.update({name: 0 for name in values if name == "dropout"})
    if values.get("engine.name", "vectorized") != "vectorized":
        values.update({name: "auto" for name in values if name == "engine.workers"})
    if "engine.num_nodes" in values:
        values["engine.num_nodes"] = min(values["engine.num_nodes"], values["num_agents"])
    return values


def test_faults_are_not_user_settings():
    """Only tests can give faults to the grid; `dropout` is a user setting."""
    for name in ["late", "crash", "nodes"]:
        with pytest.raises(
            SettingsError, match=rf"^faults\.{name} \(from .*there is no such setting"
        ):
            from_nested({"engine": {"name": "inprocess"}, "faults": {name: 1}}, SOURCE)
        assert not any(entry.dotted.startswith("faults") for entry in hydra_entries())


@property_test
@given(values=valid(list(flower_entries())))
def test_the_spelling_of_flower_round_trips(values):
    flat = {ALL[name].kebab: value for name, value in values.items()}
    built = from_flat(flat, SOURCE)
    assert to_flat(built) == flat
    assert from_flat(to_flat(built), SOURCE) == built
    for name, value in values.items():
        assert ALL[name].value(built) == value


@property_test
@given(values=valid(list(hydra_entries())))
def test_the_spelling_of_hydra_round_trips(values):
    tree = {}
    for name, value in values.items():
        *groups, leaf = name.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value
    built = from_nested(tree, SOURCE)
    assert unflatten(to_dotted(built)) == tree
    assert from_nested(unflatten(to_dotted(built)), SOURCE) == built
    for name, value in values.items():
        assert ALL[name].value(built) == value


@property_test
@given(values=valid(list(flower_entries())))
def test_both_spellings_build_the_same_settings(values):
    values = {name: value for name, value in values.items() if ALL[name] in list(hydra_entries())}
    built = from_flat({ALL[name].kebab: value for name, value in values.items()}, SOURCE)
    assert from_nested(unflatten(to_dotted(built)), SOURCE) == built
