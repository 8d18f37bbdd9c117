"""Registration of an external algorithm, selection rule and environment."""

import contextlib
import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, nested

import fldb_flower as fldb
from fldb_flower.algorithms.base import Algorithm
from fldb_flower.algorithms.ogd import FLDBOGD
from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.environments import Contexts, synthetic
from fldb_flower.errors import DataError, OutputError, SettingsError
from fldb_flower.federation.exchange import Broadcast
from fldb_flower.federation.history import History
from fldb_flower.runs.results import identity, is_finished
from fldb_flower.settings import (
    ENVIRONMENT_OF,
    from_keywords,
    from_nested,
    to_dotted,
    unused,
    without_effect,
)
from simulations.engines import vectorized
from simulations.run import run

CATALOGUES = {"algorithm": ALGORITHMS, "selection": SELECTIONS, "environment": ENVIRONMENTS}
SMALL = {"num_agents": 4, "horizon": 12, "num_arms": 3, "dimension": 2}

pytestmark = pytest.mark.usefixtures("registered")


def regret(tmp_path, engine, **values):
    """Run settings on an engine; return the text of regret.csv and the cumulative regrets."""
    path = tmp_path / f"{engine}{len(list(tmp_path.iterdir()))}"
    settings = from_nested(nested(**SMALL | values, engine__name=engine, plot=False), "a test")
    run(settings, path)
    text = (path / "regret.csv").read_text()
    return text, np.loadtxt(text.splitlines()[1:], delimiter=",")[:, 1]


def play(**values):
    """Play one iteration, unless told otherwise; return the history."""
    chosen = from_nested(nested(**{**SMALL, "horizon": 1, **values}), "a test")
    history = History(chosen.horizon)
    vectorized.run(chosen, history)
    return history


def zeros_of(features):
    return np.zeros(len(features), dtype=np.int64)


# --- what is registered is used --------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vectorized", "inprocess"])
def test_registered_code_runs_on_each_engine(tmp_path, engine):
    """Arms 0 and 1 have rewards 1 and 2, the best arm 4: the mean regret is 2 * 4 - 1 - 2.

    With theta = 0 all scores are equal, so UCB always selects the first pair.
    """

    @ALGORITHMS.register("stubborn")
    class ConstantEstimate(Algorithm):
        def learn(self, federation, round_):
            federation.exchange(Broadcast(self.play(round_), self.theta_sync))
            return {"theta_sync": np.zeros(2)}

    @SELECTIONS.register("zero_and_one")
    def zero_and_one(features, theta, whitener, width, noise):
        return zeros_of(features), zeros_of(features) + 1

    @SELECTIONS.register("first_pair")
    def first_pair(features, theta, whitener, width, noise):
        return zeros_of(features), zeros_of(features)

    @SELECTIONS.register("of_noise", noise=lambda s, n, shape: s.random("selection", n, shape[0]))
    def of_noise(features, theta, whitener, width, noise):
        assert noise.shape == features.shape[:2]
        return np.argmin(noise, axis=1), np.argmax(noise, axis=1)

    @ENVIRONMENTS.register("ladder")
    class Ladder:
        def __init__(self, settings, agents):
            self.agents = len(agents)

        def contexts(self, streams, iterations):
            shape = (self.agents, iterations, 3)
            features = np.broadcast_to(np.array([[1.0, 0], [2, 0], [4, 0]]), (*shape, 2))
            return Contexts(features.copy(), np.broadcast_to([1.0, 2, 4], shape).copy())

    ladder = {"selection": "zero_and_one", "environment__name": "ladder"}
    for algorithm in ("fldb_ogd", "fldb_gd", "fldb_ons", "ldb"):
        _, got = regret(tmp_path, engine, algorithm=algorithm, **ladder)
        assert got == pytest.approx(5.0 * np.arange(1, 13))
    stubborn = {"algorithm": "stubborn", "beta_scale": 0}
    _, got = regret(tmp_path, engine, **stubborn, selection="ucb")
    assert got == pytest.approx(regret(tmp_path, engine, **stubborn, selection="first_pair")[1])
    assert regret(tmp_path, engine, selection="of_noise")[1][-1] > 0
    ALGORITHMS.register("copy_of_ogd", FLDBOGD, online=True)
    copy, original = (
        regret(tmp_path, engine, algorithm=name)[0] for name in ("copy-of-ogd", "fldb_ogd")
    )
    assert copy == original


def test_a_rule_may_return_lists_and_other_integers():
    @SELECTIONS.register("lists")
    def lists(features, theta, whitener, width, noise):
        return [1] * len(features), np.full(len(features), 2, np.uint8)

    assert fldb.DuelingBandit(selection="lists").propose([[1.0]] * 3) == (1, 2)


def test_every_entry_of_the_package_can_be_imported():
    for catalogue in CATALOGUES.values():
        assert all(callable(catalogue.load(name)) for name in catalogue)


def test_a_script_accepts_its_algorithm_on_the_command_line(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "from fldb_flower.algorithms.ogd import FLDBOGD\n"
        "from fldb_flower.catalogue import ALGORITHMS\n"
        "from simulations.run import main\n"
        "ALGORITHMS.register('mine', FLDBOGD)\n"
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    words = ["algorithm=mine", "selection=thompson", "num_agents=3", "horizon=5"]
    done = subprocess.run(
        [sys.executable, str(script), *words, f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "algorithm: mine\n" in (tmp_path / "run" / "config.yaml").read_text()


# --- registrations ---------------------------------------------------------------------------


def test_errors_list_registered_names():
    for name in ("algorithm", "selection"):
        with pytest.raises(SettingsError, match="must be one of") as error:
            from_nested({name: "mine"}, "a test")
        assert "mine," not in str(error.value)
        CATALOGUES[name].register("mine", "a_module_that_is_not_imported:Mine")
        with pytest.raises(SettingsError, match=r", mine; did you mean mine\?$"):
            from_nested({name: "mina"}, "a test")
        assert getattr(from_nested({name: "MINE"}, "a test"), name) == "mine"


def test_a_registered_algorithm_states_what_it_is_able_to():
    for values, able in (
        ({"robust": "trimmed"}, {"online": True}),
        ({"first_round": "step"}, {"exchanges": "several_first"}),
    ):
        ALGORITHMS.register("mine", FLDBOGD)
        with pytest.raises(SettingsError, match="needs algorithm fldb_ogd or fldb_ons, not mine"):
            from_nested({"algorithm": "mine", **values}, "a test")
        ALGORITHMS.register("mine", FLDBOGD, **able)
        settings = from_nested({"algorithm": "mine", **values}, "a test")
        assert settings.exchanges == ("one" if "first_round" in values else "several")


def test_names_of_the_package_are_fixed_and_others_can_be_replaced():
    for target in (FLDBOGD, "fldb_flower.algorithms.ons:FLDBONS"):
        ALGORITHMS.register("mine", target)
    assert ALGORITHMS.load("mine").__name__ == "FLDBONS"
    assert ALGORITHMS.added == {"mine"}


def test_an_invalid_registration_is_refused():
    for register, message in (
        *(
            (lambda name=name: ALGORITHMS.register(name, FLDBOGD), f"^{name!r} cannot be reg")
            for name in ("Mine", "my-own", "1st", "", "fldb_ogd")
        ),
        (lambda: fldb.register_environment("x")(3), "'x' cannot .*: 3 must be a class or function"),
        (lambda: fldb.register_selection("x")("ucb"), "'ucb' must be a class or function"),
        (lambda: fldb.register_selection("x")(".rules:ucb"), "'.rules:ucb' must be a class"),
        (lambda: fldb.register_selection("x", noise=1), "noise=1 must be a function"),
        (lambda: fldb.register_algorithm("x", online="yes"), "online='yes' must be True or False"),
        (lambda: fldb.register_algorithm("x", agents="all"), "agents='all' must be one of common"),
        (lambda: fldb.register_algorithm(FLDBOGD), "FLDBOGD'> cannot .* must be the name"),
    ):
        with pytest.raises(SettingsError, match=message) as error:
            register()
        assert "\n" not in str(error.value)
    assert not any(each.added for each in CATALOGUES.values())


def test_a_reference_to_nothing_is_refused_on_first_use():
    for reference, reason in (
        ("nomod.a:X", "No module named 'nomod'"),
        ("os:X", "module 'os' has no attribute 'X'"),
    ):
        for setting in ("algorithm", "environment", "selection", "noise"):
            part, used = "target", setting
            if setting == "noise":
                part, used = "noise", "selection"
                SELECTIONS.register("mine", lambda *_: None, noise=reference)
            else:
                CATALOGUES[setting].register("mine", reference)
            message = (
                f"{used}=mine: its {part} is registered as '{reference}', which cannot be imported"
                f" ({reason}); register a class or function, or where it can be imported"
            )
            with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
                fldb.run(num_agents=2, horizon=2, **{used: "mine"})
            if used == "selection":
                with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
                    fldb.DuelingBandit(selection="mine").propose([[1.0], [2.0]])


# --- what registered code returns ------------------------------------------------------------


def test_an_invalid_pair_of_arms_is_refused():
    for change, message in (
        (lambda z: (np.ma.array(z, mask=z == 0), z + 1), "must be 4 whole numbers"),
        (lambda z: (z - 1, z + 1), "returned arm -1: must be 4 whole .* from 0 to 2,"),
        (lambda z: (z, z + 3), "returned arm 3: must be"),
        (lambda z: (z[1:], z), r"of shape \(3,\): must be 4 whole numbers"),
        (lambda z: (0, z), r"returned 0 of shape \(\): must be"),
        (lambda z: (z, z + 0.5), "must be 4 whole numbers"),
        (lambda _: None, r"returned None: must be \(first, second\)"),
    ):
        SELECTIONS.register("wrong", lambda x, *_, change=change: change(zeros_of(x)))
        with pytest.raises(DataError, match=f"^selection=wrong: the rule .*{message}[^\n]*$"):
            play(selection="wrong")
        with pytest.raises(DataError, match=r"^selection=wrong: the rule"):
            fldb.DuelingBandit(selection="wrong").propose([[1.0]] * 2)


def test_invalid_contexts_are_refused(register_world):
    features, rewards = np.ones((4, 1, 3, 2)), np.ones((4, 1, 3))
    for returned, message in (
        (None, "returned None: must return Contexts"),
        ((1, 2), r"returned \(1, 2\): must return"),
        (Contexts(np.ma.masked_equal(features, 1), rewards), "features with masked entries"),
        (Contexts(features, np.ma.masked_equal(rewards, 1)), "rewards with masked entries"),
        (Contexts([1.0], [2.0]), r"returned Contexts\(features=\[1.0\], rewards=\[2.0\]\): must"),
        (
            Contexts(features[:, :, :2], rewards[:, :, :2]),
            r"features of shape \(4, 1, 2, 2\): must return"
            r" .* features of shape \(4, 1, 3, 2\) and rewards of shape \(4, 1, 3\)$",
        ),
    ):

        class Wrong:
            def __init__(self, settings, agents):
                pass

            def contexts(self, streams, iterations):
                return returned  # noqa: B023

        with pytest.raises(DataError, match=rf"^Wrong\.contexts .*{message}"):
            play(environment__name=register_world(Wrong))
    with pytest.raises(DataError, match=r"^environment world: str has no method contexts$"):
        play(environment__name=register_world(lambda *_: "Oslo"))


def test_masked_arrays_without_masked_entries_are_arrays(register_world):
    class World:
        shows_pairs = False

        def __init__(self, settings, agents):
            shape = len(agents), 1, settings.num_arms, settings.dimension
            self.features = np.arange(np.prod(shape), dtype=float).reshape(shape)

        def contexts(self, streams, iterations):
            return Contexts(np.ma.array(self.features), np.ma.array(self.features[..., 0]))

        def answers(self, first, second):
            return np.ma.array(np.ones(len(first)), mask=self.masked)

        def state(self):
            return {}

        def restore(self, state):
            pass

    World.masked = False
    play(environment__name=register_world(World))
    World.masked = True
    with pytest.raises(DataError, match=r"^World\.answers returned masked entries: must"):
        play(environment__name="world")


class Rare:
    """The first arm is better than the second in a few iterations of a few agents."""

    better = frozenset()  # agents and iterations

    def __init__(self, settings, agents):
        self.agents, self.drawn = agents, 0

    def contexts(self, streams, iterations):
        features = streams.standard_normal("arms", iterations, 2, 3)
        rewards = np.full(features.shape[:3], 0.1)
        for agent, iteration in self.better:
            if agent in self.agents and self.drawn < iteration <= self.drawn + iterations:
                place = self.agents.index(agent), iteration - 1 - self.drawn
                rewards[place] = [1.0, 0.1]
        self.drawn += iterations
        return Contexts(features, rewards)


def test_an_environment_needs_one_better_arm(register_world, monkeypatch):
    """Whichever agent has it, and in whichever iteration."""
    large = {"num_agents": 50, "horizon": 40, "num_arms": 2, "dimension": 3}
    name, message = register_world(Rare), r"^environment=world: no arm is better than another, "
    for algorithm in ("fldb_ons", "ldb", "random"):
        with pytest.raises(DataError, match=message):
            play(**large, algorithm=algorithm, environment__name=name)
        with pytest.raises(DataError, match=message):
            fldb.run(**large, algorithm=algorithm, environment=name)
    for better in ((49, 40), (0, 1), (32, 17)):
        monkeypatch.setattr(Rare, "better", {better})
        found = play(**large, environment__name=name).regret
        assert found in (0.0, pytest.approx(0.9 / 50), pytest.approx(1.8 / 50))


def test_a_theta_of_zero_is_refused(monkeypatch):
    class Zeros:
        def standard_normal(self, dimension):
            return np.zeros(dimension)

    monkeypatch.setattr(synthetic, "shared_generator", lambda *_: Zeros())
    with pytest.raises(DataError, match=r"^environment=synthetic: no arm .* algorithm is 0$"):
        play(horizon=20)
    play(horizon=20, environment__sigma=0.5)  # agents then have a theta of their own


def test_an_invalid_change_of_the_state_is_refused():
    for returned, message in (
        (None, "returned None: must be a dict"),
        ({"theta_sync": np.zeros(3)}, r"theta_sync of shape \(3,\): .* shape \(2,\)$"),
        ({"theta_sync": [0.0, 0.0]}, "theta_sync of type list: must be an array"),
        ({"theta": np.zeros(2)}, "returned 'theta': must be one of .* theta_sync, information"),
    ):

        @ALGORITHMS.register("wrong")
        class Wrong(Algorithm):
            def learn(self, federation, round_):
                federation.exchange(Broadcast(self.play(round_), self.theta_sync))
                return returned  # noqa: B023

        @ALGORITHMS.register("wrong_step", online=True)
        class WrongStep(FLDBOGD):
            def step(self, upload, round_):
                return returned  # noqa: B023

        for name, method in (("wrong", r"Wrong\.learn"), ("wrong_step", r"WrongStep\.step")):
            with pytest.raises(DataError, match=f"^{method} .*{message}"):
                play(horizon=3, algorithm=name, tau=1)


@pytest.mark.parametrize("made", [0, 1])
def test_a_round_without_an_exchange_is_refused(made):
    """Also after rounds with one: the upload of an earlier round is not counted again."""

    @ALGORITHMS.register("silent")
    class Silent(Algorithm):
        def learn(self, federation, round_):
            if round_.last <= made:
                federation.exchange(Broadcast(self.play(round_), self.theta_sync))
            return {}

    with pytest.raises(DataError, match=r"^Silent\.learn made no exchange: call federation\.exch"):
        play(horizon=3, algorithm="silent", tau=1)


@pytest.mark.parametrize(
    ("exchanges", "made", "is_refused"),
    [
        ("one", [1, 1], False), ("one", [2, 1], True), ("one", [1, 2], True),
        ("several_first", [3, 1], False), ("several_first", [3, 2], True),
        ("several", [3, 2], False),
    ],
)  # fmt: skip
def test_a_round_with_more_exchanges_than_declared_is_refused(exchanges, made, is_refused):
    @ALGORITHMS.register("often", exchanges=exchanges)
    class Often(Algorithm):
        def learn(self, federation, round_):
            for _ in range(made[round_.first > 1]):
                federation.exchange(Broadcast(self.play(round_), self.theta_sync))
            return {}

    words = r"^Often\.learn made \d exchanges in the round of iteration \d, and is registered with"
    with pytest.raises(DataError, match=words) if is_refused else contextlib.nullcontext():
        play(horizon=2, algorithm="often", tau=1)


OWN = {
    "algorithm": "from fldb_flower.algorithms.ons import FLDBONS\nclass Mine(FLDBONS):\n    x = {}",
    "environment": "from fldb_flower.environments.synthetic import Synthetic\n"
    "class Mine(Synthetic):\n    x = {}",
    "selection": "from fldb_flower.bandit.selection import ucb\n"
    "def Mine(*given):\n    x = {}\n    return ucb(*given)",
}


@pytest.mark.parametrize("kind", OWN)
def test_runs_of_changed_code_are_not_read_back(tmp_path, monkeypatch, kind):
    """The code is the source of a registered class or function; of equal code, they are."""
    monkeypatch.syspath_prepend(tmp_path)
    chosen = {"num_agents": 3, "horizon": 4, "algorithm": "fldb_ons", kind: "mine"}
    folder = tmp_path / "runs"
    for number, (x, expected) in enumerate([(1, 1), (1, 1), (3, 2), (1, 2)]):
        (tmp_path / f"{kind}{number}.py").write_text(OWN[kind].format(x) + "\n")
        CATALOGUES[kind].register("mine", importlib.import_module(f"{kind}{number}").Mine)
        fldb.sweep(chosen, seed=[0], directory=folder, progress=False)
        assert sum(each.is_dir() for each in folder.iterdir()) == expected
    finished = sorted(folder.glob("*/summary.json"))
    now = CATALOGUES[kind].code("mine")
    same, other = sorted(finished, key=lambda path: json.loads(path.read_text())["code"] != now)
    settings = from_keywords({**chosen, "seed": 0}, "a test")
    assert is_finished(same.parent, settings)
    with pytest.raises(OutputError, match=r"holds a run of other code: name another directory$"):
        is_finished(other.parent, settings)


# --- settings without effect -----------------------------------------------------------------

OTHER = {  # another value of each setting that may be without effect
    "tau": 3, "schedule.name": "geometric", "schedule.ratio": 3.0, "selection": "thompson",
    "lambda": 50.0, "kappa_mu": 0.01, "delta": 0.9, "beta_scale": 3e4, "alpha": 20.0,
    "step_index": "round", "projection_center": "current", "projection_radius": 0.05,
    "solver": "gd", "gd_steps": 2, "gd_step_size": 0.01, "first_round": "step", "ons_ridge": 3.0,
    "ons_width": 0.1, "personal_ridge": 3.0, "personal_width": 2.0, "personal_variance": 0.3,
    "personal_structure": "isotropic", "coldb_edge": 0.05, "refit_ratio": 9.0,
    "matrix_form": "diagonal", "max_difference": 2.0,
    "environment.sigma": 0.4, "environment.directions": 1, "environment.clusters": 2,
    "environment.users": "persistent", "environment.scale": "none", "privacy.delta": 1e-3,
    "privacy.unit": "answer", "privacy.clip": 1.5, "privacy.min_variance": 0.5,
    "privacy.parties": 2, "quorum": 0.5,
    "node_wait": 5.0, "reply_timeout": 5.0, "max_message_mb": 7.0, "engine.num_nodes": 3,
    "engine.num_cpus": 2, "engine.num_gpus": 1.0, "checkpoint_seconds": 1.0,
}  # fmt: skip
WITHOUT_RESULTS = {"checkpoint_seconds"}  # settings with an effect on other things
NOISE = {"privacy.epsilon": 1.0, "first_round": "step"}
PROJECTED = {"projection_radius": 0.05, "alpha": 1.0}
CASES = [
    *({"algorithm": name} for name in ALGORITHMS if name != "fldb_ogd"),
    {"algorithm": "fldb_ogd", "kappa_mu": 1e4, "alpha": 0.03},
    {"algorithm": "fldb_ogd", "schedule.name": "geometric", **PROJECTED},
    {"algorithm": "fldb_ogd", "matrix_form": "diagonal", "dimension": 5, **PROJECTED},
    {"algorithm": "fldb_ogd", **NOISE, **PROJECTED},
    {"algorithm": "fldb_ons", "beta_scale": 1.0},
    {"algorithm": "fldb_ons", **NOISE},
    {"algorithm": "fldb_personal", "personal_variance": "auto", "privacy.epsilon": 100.0},
    {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 3},
    *({"algorithm": name, "environment.name": "duels"} for name in ("fldb_gd", "ldb")),
    {"algorithm": "fldb_ogd", "environment.name": "duels", "kappa_mu": 1e4, "alpha": 1.0},
    {"algorithm": "fldb_ons", "environment.name": "duels", "beta_scale": 0.5},
    {"algorithm": "fldb_personal", "environment.name": "duels"},
]


def all_results(chosen):
    history = History(chosen.horizon)
    theta = vectorized.run(chosen, history)
    counts = history.uploaded_bytes, history.downloaded_bytes, history.rounds
    return (history.cumulative_regret.tolist(), history.log_loss, theta.tolist(), *counts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_results_depend_on_a_setting_if_and_only_if_it_is_not_unused(case, tmp_path):
    common = {"num_agents": 3, "horizon": 30, "num_arms": 5, "dimension": 3} | case
    if "environment.name" in case:  # recorded answers, which are predicted
        arms = np.random.default_rng(0).normal(size=(8, 3))
        rows = [f"{arm}," + ",".join(map(str, row)) for arm, row in enumerate(arms)]
        (tmp_path / "arms.csv").write_text("\n".join(["arm,a,b,c", *rows]))
        duels = np.random.default_rng(1).integers(0, 7, size=(160, 2))
        rows = [f"p{n % 3},{a},{a + 1},{int(b > 3)}" for n, (a, b) in enumerate(duels)]
        (tmp_path / "duels.csv").write_text("\n".join(["person,first,second,preference", *rows]))
        common |= {"environment.path": str(tmp_path), "environment.play": "predict"}
    base = from_keywords(common, "a test")
    expected, reasons = all_results(base), unused(to_dotted(base))
    assert set(OTHER) >= set(reasons) - {f"environment.{own}" for own in ENVIRONMENT_OF} - {
        "environment.path"
    }
    without = {}  # settings without effect
    for name, value in OTHER.items():
        if value == common.get(name):
            continue
        try:
            changed = from_keywords({**common, name: value}, "a test")
        except SettingsError:  # refused
            continue
        is_unused = name in unused(to_dotted(changed))
        assert is_unused == (name in reasons)
        assert is_unused == (f"{name.removesuffix('.name')}={value!r}" in without_effect([changed]))
        is_centered = name == "projection_center" and base.projection_radius == "auto"
        if is_unused:
            without[name] = value
        elif name not in WITHOUT_RESULTS and not is_centered:  # nothing is projected
            assert all_results(changed) != expected, name
    together = from_keywords({**common, **without}, "a test")
    assert all_results(together) == expected
    assert identity(together) == identity(base)
