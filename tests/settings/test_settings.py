"""Settings: checks, the spellings, and error messages."""

import dataclasses
import math
import re
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fldb_flower.errors import FldbError, SettingsError
from fldb_flower.settings import (
    AUTO,
    EngineSettings,
    Settings,
    entries,
    flower_entries,
    from_flat,
    from_keywords,
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
NAMES = {name: entry for name, entry in ALL.items() if entry.choices}
SWITCHES = {name: entry for name, entry in ALL.items() if entry.kind is bool}
TEXTS = {name: entry for name, entry in ALL.items() if name not in {*NUMBERS, *NAMES, *SWITCHES}}
RESOLVED = {"num_agents": 100, "horizon": 500, "dimension": 5}
"""Settings that are never auto once they are built, and their defaults."""

property_test = hypothesis_settings(deadline=None, derandomize=True, max_examples=100)


def check(entry, value):
    return entry.check(value, entry.dotted, SOURCE)


def in_python(name, value):
    """Build settings with one value, and with its group by ``replace``."""
    entry = ALL.get(name)
    if entry is None or not entry.group:
        return Settings(**{entry.field if entry else name: value})
    group = getattr(Settings(), entry.group)
    changed = dataclasses.replace(group, **{entry.field: value})
    return dataclasses.replace(Settings(), **{entry.group: changed})


def refused(entry, value):
    """Return the error message of a value that is refused by the check, and in Python."""
    messages = []
    for build, spelling in ((check, entry.dotted), (in_python, entry.attribute)):
        with pytest.raises(SettingsError) as error:
            build(entry if build is check else entry.dotted, value)
        messages.append(str(error.value))
        assert messages[-1].startswith(f"{spelling}=")
        assert messages[-1].isprintable()
    assert f" (from {SOURCE}): must be " in messages[0]
    assert messages[0].partition("): ")[2] == messages[1].partition(" (from Python): ")[2]
    return messages[0]


# --- declarations --------------------------------------------------------------------------


def test_every_field_is_a_setting_with_a_valid_default_and_a_description():
    def count(cls):
        factories = [field.default_factory for field in dataclasses.fields(cls)]
        return sum(1 if each is dataclasses.MISSING else count(each) for each in factories)

    assert count(Settings) == len(ALL)
    for name, entry in ALL.items():
        checked = check(entry, entry.default)
        assert (checked, type(checked)) == (entry.default, type(entry.default))
        assert len(entry.help) > 5
        assert entry.value(Settings()) == RESOLVED.get(name, entry.default)


def test_spellings_are_unique_and_those_by_hand():
    for spelling in ("dotted", "kebab", "keyword"):
        assert len({getattr(entry, spelling) for entry in entries()}) == len(ALL)
    for entry in entries():
        assert not set(entry.kebab) & set("._ ")
        assert entry.kebab.islower()
    spelled = {name: entry.kebab for name, entry in ALL.items()}
    assert spelled["num_agents"] == "num-agents"
    assert spelled["environment.name"] == "environment"
    assert spelled["environment.sigma"] == "environment-sigma"
    assert (spelled["lambda"], ALL["lambda"].field) == ("lambda", "lambda_")


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
        "helper_key", "helper_token", "features",
    }  # fmt: skip
    assert set(ALL) - hydra == {"output_dir", "mode", *(f"devices.{name}" for name in devices)}
    assert {name.split(".")[0] for name in set(ALL) - flower} == {"engine", "dropout"}


# --- checks of one setting -----------------------------------------------------------------


class Unprintable:
    def __repr__(self):
        raise RuntimeError


WRONG = (
    Unprintable(), 10**5000, np.zeros((3, 3)), np.bool_(True), object(), 1j, None, [1], {"a": 1}
)  # fmt: skip


def test_a_value_of_the_wrong_type_is_refused_in_one_line():
    for name, values, valid in (
        *((each, ("5", "", True, math.nan, math.inf, -math.inf), "a number") for each in NUMBERS),
        *((each, (1.5,), "a whole number") for each in WHOLE),
        *((each, ("", "nonsense", 3, True, ["fldb_ogd"]), "one of") for each in NAMES),
        *((each, (3, 1.5, True, ["a"]), "a string") for each in TEXTS),
        *((each, (0, 1.0, "true", ""), "true or false") for each in SWITCHES),
    ):
        expected = f": must be {'a whole number' if name in WHOLE else valid}"
        for value in values:
            message = refused(ALL[name], value)
            assert message.startswith(f"{name}={value!r} (from")
            assert expected in message
            for choice in ALL[name].choices:
                assert choice in message
        for value in WRONG:
            assert expected in refused(ALL[name], value)


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
    "dropout": ([-0.1, 1.1], [0]),
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
    for name, (without, meaningful) in MEANINGFUL.items():
        entry = NUMBERS[name]
        for value in without:
            assert f"={entry.kind(value)!r} (from" in refused(entry, value)
        for value in meaningful:  # users may write 1000 as 1e3, and 0.0 as 0
            for written in {value, float(value)} if value < 2**53 else {value}:
                checked = check(entry, written)
                assert (checked, type(checked)) == (value, entry.kind)
                assert entry.value(in_python(name, written)) == value


def test_every_number_is_bounded_by_the_limits_in_the_message():
    """No number can overflow: every accepted number is between two stated limits."""
    for entry in NUMBERS.values():
        limits = entry.limits
        for limit, sign, closed, is_open in (
            (limits.minimum, -1, "(at least|from)", "above"),
            (limits.maximum, 1, "(at most|to)", "below"),
        ):
            beyond, within = limit + sign, limit - sign
            if entry.kind is float:
                beyond = math.nextafter(limit, sign * math.inf)
                within = math.nextafter(limit, -sign * math.inf)
            is_excluded = limit == limits.excluded
            shown = f"{limit:.0f}" if 1e4 <= limit < 1e9 else f"{limit:g}"
            shown = "9.2e18" if limit == 2**63 - 1 else shown
            message = refused(entry, limit if is_excluded else beyond)
            assert re.search(
                f"{is_open if is_excluded else closed} {re.escape(shown)}", message.replace(",", "")
            )
            for value in (within, *(() if is_excluded else (limit,))):
                assert check(entry, value) == value
    assert refused(ALL["num_arms"], 1).endswith("(a duel needs two arms)")


def test_auto_is_accepted_only_for_derived_settings():
    derived = {name for name, entry in NUMBERS.items() if entry.default == AUTO}
    assert derived == {
        "num_agents", "horizon", "dimension", "engine.workers", "devices.first_duels", "lambda",
        "beta_scale", "projection_radius", "gd_step_size", "max_difference", "personal_variance",
        "privacy.clip", "environment.change_at", "environment.like", "quorum",
    }  # fmt: skip
    for name, entry in NUMBERS.items():
        message = refused(entry, "automatic")
        assert (" or auto" in message) == (name in derived)
        if name in derived:
            assert check(entry, AUTO) == AUTO
        else:
            refused(entry, AUTO)
    assert check(ALL["engine.workers"], "ray") == "ray"
    assert check(ALL["privacy.epsilon"], "none") == "none"


def test_choices_are_accepted_in_all_spellings():
    for name, entry in NAMES.items():
        for choice in entry.choices:
            for written in (choice, choice.replace("_", "-"), choice.upper()):
                assert check(entry, written) == choice
        assert isinstance(in_python(name, entry.default.upper()), Settings)
    assert Settings(algorithm="FLDB-ONS", selection="MaxPairUCB").selection == "maxpairucb"
    for entry in TEXTS.values():
        assert check(entry, "/some/folder") == "/some/folder"
    for entry in SWITCHES.values():
        assert [check(entry, answer) for answer in (True, False)] == [True, False]


def test_numbers_of_other_libraries_are_converted():
    for number in (
        np.int64(7), np.uint8(7), np.float64(7.0), np.float32(7.0), 7.0, Fraction(14, 2)
    ):  # fmt: skip
        settings = Settings(tau=number, alpha=number)
        assert (settings.tau, type(settings.tau)) == (7, int)
        assert (settings.alpha, type(settings.alpha)) == (7.0, float)


# --- unknown settings, and settings that do not go together --------------------------------


def test_errors_use_the_spelling_and_the_origin_of_the_user():
    for name in ("num_agents", "environment.sigma", "algorithm"):
        with pytest.raises(SettingsError, match=rf"^{name}=-1(\.0)? \(from x\)"):
            from_nested(unflatten({name: -1}), "x")
        key = ALL[name].kebab
        with pytest.raises(SettingsError, match=rf"^{key}=-1(\.0)? \(from x\)"):
            from_flat({key: -1}, "x")
    with pytest.raises(SettingsError, match=r"num_agents=0 \(from Python\)"):
        Settings(num_agents=0)
    with pytest.raises(SettingsError, match=r"engine.num_nodes=4 \(from Python\)"):
        Settings(num_agents=3, engine=EngineSettings("inprocess", num_nodes=4))
    for name in ("late", "crash", "nodes"):  # only tests can give faults to the grid
        with pytest.raises(SettingsError, match=rf"^faults\.{name} \(from .*no such setting"):
            from_nested({"engine": {"name": "inprocess"}, "faults": {name: 1}}, SOURCE)


def test_a_group_must_have_its_type():
    for value in ("geometric", Unprintable(), EngineSettings(), None):
        with pytest.raises(SettingsError, match=r"^schedule=.*: must be ScheduleSettings\(...\)$"):
            Settings(schedule=value)


def test_compatible_settings_at_the_limit_are_accepted():
    movielens = {"name": "movielens", "path": "ml-100k.zip"}
    for values in [
        {"dimension": 20, "num_arms": 200, "environment": movielens},
        {"dimension": 21, "num_arms": 201},
        {"num_agents": 4, "engine": {"name": "inprocess", "num_nodes": 4}},
        {"num_agents": 4, "engine": {"name": "inprocess"}, "dropout": 1},
        {"num_agents": 1, "engine": {"name": "vectorized", "num_nodes": 2}},
    ]:
        assert isinstance(from_nested(values, "x"), Settings)


def test_values_that_follow_from_others():
    assert from_nested({"horizon": 250}, SOURCE).ridge == 1 / 250
    assert from_nested({"horizon": 250, "lambda": 3}, SOURCE).ridge == 3.0
    assert from_flat({}, SOURCE) == from_nested({}, SOURCE) == Settings()
    for algorithm, epsilon, expected in [  # the first round is one exchange with privacy
        ("fldb_ons", "none", False),
        ("fldb_ons", 3.0, True),
        ("fldb_ogd", 3.0, True),
        ("fldb_personal", 3.0, False),
        ("fldb_gd", "none", False),
    ]:
        values = {"algorithm": algorithm, "privacy": {"epsilon": epsilon}}
        assert from_nested(values, "x").takes_first_step is expected
    for chosen, expected in (("step", True), ("minimise", False)):
        assert Settings(first_round=chosen).takes_first_step is expected


# --- round trips ---------------------------------------------------------------------------


def value_of(entry):
    """Return a strategy for the accepted values of an entry."""
    limits = entry.limits
    if entry.choices:
        return st.sampled_from(list(entry.choices))
    if entry.kind is int:
        numbers = st.integers(limits.minimum, limits.maximum)
    elif entry.kind is float:
        is_open, is_open_above = (limits.excluded == each for each in limits[:2])
        numbers = st.floats(*limits[:2], exclude_min=is_open, exclude_max=is_open_above)
    else:
        return st.booleans() if entry.kind is bool else st.text(max_size=20)
    words = () if entry.dotted in RESOLVED else entry.words
    return st.one_of(numbers, *map(st.just, words))


def some(known):
    """Return a strategy for values of one to six settings by dotted name."""
    names = st.sets(st.sampled_from([each.dotted for each in known]), min_size=1, max_size=6)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({each: value_of(ALL[each]) for each in sorted(chosen)})
    )


def built(build, values):
    try:
        return build(values, SOURCE)
    except FldbError:  # they do not go together
        reject()


@property_test
@given(values=some(flower_entries()))
def test_the_spelling_of_flower_round_trips(values):
    flat = {ALL[name].kebab: value for name, value in values.items()}
    settings = built(from_flat, flat)
    assert to_flat(settings) == to_flat(Settings()) | flat
    assert {name: ALL[name].value(settings) for name in values} == values
    assert from_flat(to_flat(settings), SOURCE) == settings


@property_test
@given(values=some(hydra_entries()))
def test_the_spelling_of_hydra_round_trips(values):
    settings = built(from_nested, unflatten(values))
    assert to_dotted(settings) == to_dotted(Settings()) | values
    assert {name: ALL[name].value(settings) for name in values} == values
    assert from_nested(unflatten(to_dotted(settings)), SOURCE) == settings
    keywords = {ALL[name].keyword: value for name, value in values.items()}
    assert from_keywords(keywords, SOURCE) == settings
    if all(ALL[name] in flower_entries() for name in values):
        assert from_flat({ALL[name].kebab: values[name] for name in values}, SOURCE) == settings
