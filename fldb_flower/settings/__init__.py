"""The settings of a run: declarations, spellings and checks.

``conf/`` (snake_case, groups as nested keys), Flower's run config in ``pyproject.toml``
(kebab-case, flat) and keyword arguments are spellings of :class:`Settings`. pydantic is not used:
its import and the model take 0.13 s of CPU time, and the process that answers one message of a
device takes 0.48 s in total.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.errors import SettingsError, one_line, shown
from fldb_flower.settings.entries import (
    AUTO,
    COUNT,
    FROM_ZERO,
    MAX_REAL,
    MIN_REAL,
    NONE,
    NOT_NEGATIVE,
    ORIGIN,
    POSITIVE,
    RAY,
    SECONDS,
    SHARE,
    WAIT,
    Checked,
    Entry,
    Limits,
    Spelling,
    entries_of,
    groups_of,
    setting,
    suggestion,
)
from fldb_flower.settings.rules import (
    ENVIRONMENT_OF,
    MOVIELENS_DIMENSIONS,
    MOVIELENS_ITEMS,
    NORMAL,
    SELECTION_SETTINGS,
    automatic,
    check_together,
    unused,
)

__all__ = [
    "AUTO", "ENVIRONMENT_OF", "MAX_DIMENSION", "MOVIELENS_DIMENSIONS", "MOVIELENS_ITEMS", "NONE",
    "RAY", "SELECTION_SETTINGS", "DevicesSettings", "EngineSettings", "Entry",
    "EnvironmentSettings", "PrivacySettings", "ScheduleSettings", "Settings", "entries",
    "entry_of", "flatten", "flower_entries", "from_flat", "from_keywords", "from_nested",
    "hydra_entries", "keyword_entry", "suggestion", "to_dotted", "to_flat", "unflatten", "unused",
    "without_effect",
]  # fmt: skip

MAX_DIMENSION = 4096  # W, (d, d), takes 128 MiB

MAX_SIGMA = 1e6  # up to this, the regret of ten million agents fits in an upload
_FLOWER_ONLY = ("output_dir", "mode", "devices")
_HYDRA_ONLY = ("engine", "dropout")


@dataclass(frozen=True)
class EnvironmentSettings(Checked, group="environment"):
    """Arms and preferences.

    :name: Source of arms and preferences.
    :sigma: Heterogeneity (synthetic, changing): agent i has theta_i = theta + N(0, sigma^2 I).
    :directions: Number r of directions in which agents differ (synthetic, changing; needs sigma).
        The total variance is the same, and 0.5% of it is spread over all directions. 0: all
        directions.
    :clusters: Number C of clusters of agents (synthetic, changing; needs sigma). All agents of a
        cluster have the same theta_i, drawn from theta + N(0, sigma^2 I). Each agent is in a random
        cluster. 0: no clusters.
    :change: changing: change of theta at change_at. flip: theta changes its sign; redraw: theta is
        drawn again from N(0, I).
    :change_at: changing: first iteration with the changed theta; 0: no change; auto: horizon / 2 +
        1, or no change if drift is set.
    :drift: changing: standard deviation of the random step that each iteration adds to each
        coordinate of theta.
    :path: movielens: ratings, as a file, a folder or the downloaded zip; duels: folder with
        duels.csv and, if arms have features, arms.csv.
    :play: duels: how the answers are used. replay: the policy selects pairs and receives the
        recorded answers; predict: recorded duels are shown in random order; auto: replay if at
        least half of the people answered at least 90% of the pairs, otherwise predict.
    :scale: duels, play=replay: scaling of the features. catalogue: they are divided by their
        standard deviations over the arms, which makes their units irrelevant; none: they are used
        as they are.
    :max_people: duels: maximum number of people, in the order of duels.csv; 0: no limit.
    :min_answers: duels: minimum number of answers of a person. With play=predict, people with fewer
        than horizon answers are left out as well.
    :users: movielens: the users of agents. drawn: each agent draws a user in each iteration, as in
        the paper; persistent: each agent is one user.
    :like: movielens: ratings above this number are likes; auto: above 3 on a five-star scale, as in
        the paper; above 0.5 if ratings are 0 or 1; above the person's mean on other scales.
    """

    name: str = setting("synthetic", ENVIRONMENTS)
    sigma: float = setting(0.0, Limits(0, MAX_SIGMA))
    directions: int = setting(0, Limits(0, MAX_DIMENSION))
    clusters: int = setting(0, Limits(0, 10_000_000))
    change: str = setting("flip", ("flip", "redraw"))
    change_at: int | str = setting(AUTO, FROM_ZERO)
    drift: float = setting(0.0, Limits(0, MAX_SIGMA))
    path: str = ""
    play: str = setting(AUTO, (AUTO, "replay", "predict"))
    scale: str = setting("catalogue", ("catalogue", "none"))
    max_people: int = setting(0, FROM_ZERO)
    min_answers: int = setting(0, FROM_ZERO)
    users: str = setting("drawn", ("drawn", "persistent"))
    like: float | str = setting(AUTO, Limits(-MAX_REAL, MAX_REAL))


@dataclass(frozen=True)
class ScheduleSettings(Checked, group="schedule"):
    """Communication rounds.

    :name: Ends of rounds. periodic: every tau iterations; geometric: t = 1 and then ceil(ratio^k).
    :ratio: Ratio of the geometric schedule.
    """

    name: str = setting("periodic", ("periodic", "geometric"))
    ratio: float = setting(1.5, Limits(1, MAX_REAL, excluded=1))


@dataclass(frozen=True)
class EngineSettings(Checked, group="engine"):
    """Engine of ``fldb run``.

    :name: vectorized, inprocess or flower.
    :num_nodes: Number of Flower nodes that host the agents (inprocess, flower).
    :num_cpus: CPUs per Flower client, a whole number (flower).
    :num_gpus: GPUs per Flower client; fractions are allowed (flower).
    :workers: Maximum number of processes that play the agents (vectorized); auto: one per available
        processor; ray: one per free CPU of the Ray cluster at RAY_ADDRESS, or of this machine.
    """

    name: str = setting("vectorized", ("vectorized", "inprocess", "flower"))
    num_nodes: int = setting(2, Limits(1, 1_000_000))
    num_cpus: int = setting(1, Limits(1, 4096))
    num_gpus: float = setting(0.0, Limits(0, 1024))
    workers: int | str = setting(AUTO, Limits(1, 4096), RAY)


@dataclass(frozen=True)
class DevicesSettings(Checked, group="devices"):
    """Rounds with real devices (mode=devices); Flower only.

    :rounds: Number of rounds that learn before the run ends; 0: no limit.
    :round_seconds: Seconds between the starts of two rounds; 0: no pause.
    :at_least: Minimum number of connected devices to start a round.
    :first_duels: Minimum number of duels of all devices for the first round; auto: 2 * dimension.
    :max_duels: Maximum number of duels per device and round; the rest waits for the next round.
    :features: Absolute path of a CSV file with the names and scales of the features, the same for
        all devices. Its header is feature,scale, or it is an arms.csv. Estimates then do not depend
        on units. Empty: no file.
    :federation: secure: name of the federation, as in vault.toml on the devices.
    :helper: secure: address of the helper, like https://helper.example.org.
    :helper_key: secure: absolute path of the helper's public key.
    :helper_token: secure: absolute path of the file with the helper's token.
    """

    rounds: int = setting(0, FROM_ZERO)
    round_seconds: float = setting(60.0, SECONDS)
    at_least: int = setting(1, COUNT)
    first_duels: int | str = setting(AUTO, COUNT)
    max_duels: int = setting(10_000, COUNT)
    features: str = ""
    federation: str = "fldb"
    helper: str = ""
    helper_key: str = ""
    helper_token: str = ""


@dataclass(frozen=True)
class PrivacySettings(Checked, group="privacy"):
    """Differential privacy: noise that is added to the sums of the agents' statistics.

    :epsilon: Differential privacy: epsilon of the whole run; none: no noise.
    :delta: Differential privacy: delta of the whole run.
    :unit: Unit of protection. person: all contributions of one agent; answer: one answer.
    :clip: Length to which agents clip longer differences in statistics; auto: max_difference if it
        is a number, otherwise, for synthetic and changing, sqrt(2 dimension), the root mean squared
        length.
    :parties: Simulations: number of parties that add noise. 1: a trusted server; 2: server and
        helper, as with secure=true.
    :min_variance: FLDB-Personal with privacy: lower limit of v, in units of 10 / clip^2. Noisy log
        losses may favour a v that is too small.
    """

    epsilon: float | str = setting(
        NONE,
        Limits(1e-3, 1e3, why="smaller is more private, and privacy.epsilon=none adds no noise"),
    )
    delta: float = setting(1e-6, Limits(1e-15, 0.1))
    unit: str = setting("person", ("person", "answer"))
    clip: float | str = setting(AUTO, POSITIVE)
    parties: int = setting(1, Limits(1, 2))
    min_variance: float = setting(0.001, Limits(1e-3, 10))


@dataclass(frozen=True)
class Settings(Checked):
    """All settings of one run.

    On construction, ``auto`` is replaced by an integer in ``num_agents``, ``horizon`` and
    ``dimension``, and with ``environment=duels`` by replay or predict in ``environment.play``.
    Names may be in kebab-case and in upper case (``"FLDB-OGD"``). Numbers may be NumPy scalars.

    :mode: simulation: simulated agents; devices: real users.
    :algorithm: Learning algorithm.
    :num_agents: N, number of agents; auto: 100, or with environment=duels the number of people.
    :horizon: T, number of iterations; auto: 500, or with environment.play=predict the median number
        of answers per person.
    :num_arms: K, number of arms per agent and iteration; always 2 with environment.play=predict.
    :dimension: d, number of features per arm; auto: 5, or with environment=duels the number in
        the study.
    :tau: Communication period: iterations between two exchanges. The paper uses 1.
    :seed: Seed of all random streams.
    :backend: Array library of the agents: numpy, or PyTorch on cpu or cuda (the torch extra).
    :rng: Random generator. numpy: the same draws on every backend; torch: different draws, made on
        the backend's device.
    :dropout: Probability that a message is lost (engine=inprocess).
    :selection: Rule that selects the two arms of a duel.
    :lambda: Ridge lambda; auto: 1 / horizon, as in the paper.
    :kappa_mu: Lower bound on mu' used by the algorithms.
    :delta: Failure probability of the confidence bound.
    :beta_scale: Factor on beta_t: 1 as in theory, 0 for no exploration; auto: 1, except that
        FLDB-ONS uses the width ons_width instead of beta_t.
    :alpha: FLDB-OGD: constant of strong convexity; the step size is 1 / (alpha * step).
    :step_index: FLDB-OGD: step in the step size. iteration: t; round: t_c, as printed in Algorithm
        2.
    :projection_center: FLDB-OGD: centre of the projection. initial: theta_hat^(1), as in the proof;
        current: theta_hat^(t_c), as in the text.
    :projection_radius: FLDB-OGD: radius of the projection; auto: 2 r, as in the paper.
    :solver: FLDB-GD: solver that minimises the loss; lbfgs needs the torch extra.
    :gd_steps: FLDB-GD, solver=gd: M, the number of exchanges per iteration.
    :gd_step_size: FLDB-GD, solver=gd: eta, the step size; auto: 1 / (trace(W) / 4 + lambda), which
        is always stable.
    :first_round: FLDB-OGD, FLDB-ONS: first estimate. minimise: the minimiser of the loss of the
        first duels, found by several exchanges; step: one long Newton step from 0, with one
        exchange; auto: step with privacy, otherwise minimise.
    :ons_ridge: FLDB-ONS: lambda_0, the ridge; values below 0.5 are unsafe with few agents.
    :ons_width: FLDB-ONS, beta_scale=auto: width of the confidence interval, in posterior standard
        deviations; 0 for no exploration.
    :personal_ridge: FLDB-Personal: lambda_0, the precision of the prior of the common theta, in
        units of the mean squared length of the offered differences, divided by 10.
    :personal_width: FLDB-Personal: width of the confidence interval, in posterior standard
        deviations.
    :personal_variance: FLDB-Personal: v, the variance of theta_i around theta, in squared units of
        theta; auto: estimated from predictions.
    :personal_structure: FLDB-Personal: how agents differ. isotropic: by v in each direction;
        learned: mainly in directions that are estimated as well; auto: learned, but isotropic with
        privacy or with a fixed personal_variance.
    :coldb_edge: COLDB: factor on the distance of two agents' estimates above which they are not in
        the same cluster.
    :refit_ratio: LDB, alone, FLDB-Personal: agents fit theta_i to all of their own duels each time
        the number of duels has grown by this ratio, and take a step of O(d^2) for each duel in
        between; 1: fit after each duel.
    :half_life: FLDB-ONS, FLDB-Personal, alone, LDB: number of later answers of an agent after which
        an answer has half its weight, for tastes that change; none: all answers have the same
        weight.
    :max_difference: L, the maximum length of a difference of two arms. Uploads that exceed it are
        rejected. auto: the environment's bound; no limit for devices (Flower).
    :matrix_form: Form of W and of Hessians. full: d^2 numbers; diagonal: d numbers.
    :robust: Aggregation of the nodes' gradients. none: their sum; trimmed: a trimmed mean (Flower).
    :secure: Secure sums: the server receives only noisy sums over the devices, never a single
        upload. Needs a helper and privacy.epsilon (mode=devices).
    :fraction_train: Fraction of the nodes that are sampled in each round (Flower).
    :quorum: Fraction of the sampled nodes that must reply in a round; auto: 1, but 0.5 for devices
        without secure sums (Flower).
    :node_wait: Seconds to wait for the first nodes and for a quorum (Flower).
    :reply_timeout: Seconds to wait for the replies of one exchange (Flower).
    :resume: Resume an interrupted run from its checkpoint; finished runs are skipped.
    :checkpoint_seconds: Seconds between two checkpoints of a run; 0: after every round.
    :plot: Draw regret.png; the jobs of a sweep draw it only if plot=true is given.
    :max_message_mb: Maximum size of a message, in MiB (Flower).
    :output_dir: Absolute path for the results (Flower); empty: a new folder in ~/fldb-runs.

    Raises
    ------
    SettingsError
        A value is of the wrong type or out of range, or two settings are incompatible.
    DataError
        A setting is auto, and the data that determine its value cannot be read.

    Examples
    --------
    >>> from fldb_flower.settings import Settings
    >>> settings = Settings(algorithm="fldb_ons", tau=1)
    >>> settings.num_agents, settings.horizon, settings.dimension
    (100, 500, 5)
    >>> Settings(tau=0)
    Traceback (most recent call last):
    fldb_flower.errors.SettingsError: tau=0 (from Python): must be at least 1...
    """

    mode: str = setting("simulation", ("simulation", "devices"))
    algorithm: str = setting("fldb_ogd", ALGORITHMS)
    num_agents: int = setting(AUTO, Limits(1, 10_000_000))
    horizon: int = setting(AUTO, COUNT)
    num_arms: int = setting(10, Limits(2, 100_000, why="a duel needs two arms"))
    dimension: int = setting(AUTO, Limits(1, MAX_DIMENSION))
    tau: int = setting(5, COUNT)
    seed: int = setting(0, FROM_ZERO)
    backend: str = setting("numpy", ("numpy", "cpu", "cuda"))
    rng: str = setting("numpy", ("numpy", "torch"))
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    dropout: float = setting(0.0, Limits(0, 1))
    devices: DevicesSettings = field(default_factory=DevicesSettings)
    selection: str = setting("ucb", SELECTIONS)
    lambda_: float | str = setting(
        AUTO, POSITIVE._replace(why="W_0 = (lambda / kappa_mu) I must be invertible")
    )
    kappa_mu: float = setting(1.0, POSITIVE)
    delta: float = setting(0.1, Limits(MIN_REAL, 1, excluded=1))
    beta_scale: float | str = setting(AUTO, NOT_NEGATIVE)
    alpha: float = setting(1000.0, POSITIVE)
    step_index: str = setting("iteration", ("iteration", "round"))
    projection_center: str = setting("initial", ("initial", "current"))
    projection_radius: float | str = setting(AUTO, POSITIVE)
    solver: str = setting("newton", ("newton", "lbfgs", "gd"))
    gd_steps: int = setting(100, Limits(1, 1_000_000))
    gd_step_size: float | str = setting(AUTO, POSITIVE)
    first_round: str = setting(AUTO, (AUTO, "minimise", "step"))
    ons_ridge: float = setting(1.0, POSITIVE)
    ons_width: float = setting(0.75, NOT_NEGATIVE)
    personal_ridge: float = setting(1.0, POSITIVE)
    personal_width: float = setting(0.5, NOT_NEGATIVE)
    personal_variance: float | str = setting(AUTO, POSITIVE)
    personal_structure: str = setting(AUTO, (AUTO, "learned", "isotropic"))
    coldb_edge: float = setting(1.0, NOT_NEGATIVE)
    refit_ratio: float = setting(1.0, Limits(1, MAX_REAL))
    half_life: float | str = setting(NONE, Limits(0.01, 1e9))
    max_difference: float | str = setting(AUTO, POSITIVE)
    matrix_form: str = setting("full", ("full", "diagonal"))
    robust: str = setting("none", ("none", "trimmed"))
    secure: bool = False
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    fraction_train: float = setting(1.0, SHARE)
    quorum: float | str = setting(AUTO, SHARE)
    node_wait: float = setting(60.0, WAIT)
    reply_timeout: float = setting(300.0, WAIT)
    resume: bool = False
    checkpoint_seconds: float = setting(30.0, SECONDS)
    plot: bool = True
    max_message_mb: float = setting(256.0, Limits(0, 1_000_000, excluded=0))
    output_dir: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        source, _ = ORIGIN.get()
        for name, kind in groups_of(Settings).items():
            if not isinstance(value := getattr(self, name), kind):
                required = f"must be {kind.__name__}(...)"
                raise SettingsError(f"{name}={shown(value)} (from {source}): {required}")
        for name, value in automatic(self).items():
            object.__setattr__(self, name, value)
        check_together(self, source)

    @property
    def ridge(self) -> float:
        """Ridge lambda as a number (``1 / horizon`` for ``auto``)."""
        return 1.0 / self.horizon if self.lambda_ == AUTO else float(self.lambda_)

    @property
    def reply_share(self) -> float:
        """Fraction of the sampled nodes that must reply (``quorum``) as a number."""
        if self.quorum != AUTO:
            return float(self.quorum)
        return 0.5 if self.mode == "devices" and not self.secure else 1.0

    @property
    def decay(self) -> float | None:
        """Factor on the weight of an answer for each later one; None without ``half_life``."""
        return None if self.half_life == NONE else 0.5 ** (1.0 / float(self.half_life))

    def total_weight(self, answers: float) -> float:
        """Return the sum of the weights of an agent's answers, given their number."""
        decay = self.decay
        return answers if decay is None else (1.0 - decay**answers) / (1.0 - decay)

    @property
    def exchanges(self) -> str:
        """Exchanges of statistics in a round: ``one`` also with ``first_round=step``.

        A round that is run again, because replies were missing, repeats its exchange.
        """
        exchanges = ALGORITHMS[self.algorithm].exchanges
        return "one" if exchanges == "several_first" and self.takes_first_step else exchanges

    @property
    def takes_first_step(self) -> bool:
        """Whether the first estimate takes one exchange (``first_round``)."""
        if self.first_round != AUTO:
            return self.first_round == "step"
        return self.is_private and ALGORITHMS[self.algorithm].exchanges == "several_first"

    @property
    def learns_directions(self) -> bool:
        """Whether agents learn in which directions they differ (``personal_structure``)."""
        entry, known = ALGORITHMS[self.algorithm], self.personal_variance != AUTO
        is_able = entry.agents == "personal" and entry.exchanges != "none"
        return is_able and not (self.personal_structure == "isotropic" or self.is_private or known)

    @property
    def is_private(self) -> bool:
        """Whether noise is added to the sums of statistics (``privacy.epsilon``)."""
        return self.privacy.epsilon != NONE

    @property
    def clip(self) -> float | None:
        """Length to which agents clip longer differences; None if nothing determines it.

        With the environments synthetic and changing, ``auto`` is ``sqrt(2 d)``, the root of the
        mean squared length of a difference of two N(0, I) arms.
        """
        given = [each for each in (self.privacy.clip, self.max_difference) if each != AUTO]
        if given and self.is_private:
            return float(given[0])
        is_normal = self.mode == "simulation" and self.environment.name in NORMAL
        return math.sqrt(2.0 * self.dimension) if is_normal and self.is_private else None


# --- spellings -------------------------------------------------------------------------------


def entries() -> tuple[Entry, ...]:
    """Return all declared settings, including those of groups, in the order of declaration."""
    return entries_of(Settings)


def flower_entries() -> list[Entry]:
    """Return the settings of Flower's run config."""
    return [entry for entry in entries() if entry.path[0] not in _HYDRA_ONLY]


def hydra_entries() -> list[Entry]:
    """Return the settings of the Hydra configuration (``hydra.run.dir`` sets the output)."""
    return [entry for entry in entries() if entry.path[0] not in _FLOWER_ONLY]


@functools.cache
def _spelled(spelling: Spelling) -> dict[str, Entry]:
    known = flower_entries() if spelling == "kebab" else hydra_entries()
    return {getattr(entry, spelling): entry for entry in known}


def entry_of(dotted: str) -> Entry:
    """Return a setting by its dotted name."""
    return _spelled("dotted")[dotted]


# --- building settings -----------------------------------------------------------------------


def from_flat(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from Flower's run config: values by kebab-case name.

    Missing settings keep their default. ``source`` is for error messages.
    """
    return _build(values, source, "kebab")


def from_nested(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from nested snake_case keys, as Hydra composes them; see :func:`from_flat`.

    Strings with numbers, which resolvers such as ``${oc.env:SEED}`` return, are read as numbers.
    """
    dotted, known = dict(flatten(values)), _spelled("dotted")
    for key, value in dotted.items():
        if isinstance(value, str) and key in known and known[key].kind is not str:
            with contextlib.suppress(ValueError):
                dotted[key] = json.loads(value.lower())
    return _build(dotted, source, "dotted")


def from_keywords(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from keywords, see :func:`keyword_entry`; a path may be a Path."""
    texts = {
        keyword_entry(key, source).keyword: fspath(value) if isinstance(value, PathLike) else value
        for key, value in values.items()
    }
    return _build(texts, source, "keyword")


def keyword_entry(key: str, source: str) -> Entry:
    """Return the setting of a keyword, ``environment_sigma``, or of ``environment.sigma``."""
    return _spelled("dotted").get(key) or _entry("keyword", key, source)


def _entry(spelling: Spelling, key: str, source: str) -> Entry:
    if found := _spelled(spelling).get(key):
        return found
    hint = suggestion(key, tuple(_spelled(spelling))) or "; `fldb run --help` lists the settings"
    raise SettingsError(f"{one_line(key)} (from {source}): there is no such setting{hint}")


def _build(values: Mapping[str, Any], source: str, spelling: Spelling) -> Settings:
    given: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        entry = _entry(spelling, key, source)
        given.setdefault(entry.group, {})[entry.field] = value
    token = ORIGIN.set((source, spelling))
    try:
        groups = {name: kind(**given.get(name, {})) for name, kind in groups_of(Settings).items()}
        return Settings(**given.get("", {}), **groups)
    finally:
        ORIGIN.reset(token)


# --- writing settings ------------------------------------------------------------------------


def to_flat(settings: Settings) -> dict[str, Any]:
    """Return the settings as Flower's run config."""
    return {entry.kebab: entry.value(settings) for entry in flower_entries()}


def to_dotted(settings: Settings) -> dict[str, Any]:
    """Return the settings by dotted name."""
    return {entry.dotted: entry.value(settings) for entry in hydra_entries()}


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested keys, for :func:`from_nested` and ``config.yaml``."""
    tree: dict[str, Any] = {}
    for dotted, value in values.items():
        group, _, key = dotted.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[key] = value
    return tree


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested mappings with dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def without_effect(chosen: Iterable[Settings]) -> str:
    """Return one line about given settings that have no effect on a run; empty if there are none.

    ``tau=3: has no effect with algorithm=ldb``
    """
    defaults = {entry.dotted: entry.default for entry in entries()}
    found: dict[str, tuple[set[Any], dict[str, None]]] = {}  # values and reasons, by name
    for settings in chosen:
        given = {entry.dotted: entry.value(settings) for entry in entries()}
        for name, reason in unused(given).items():
            if given[name] != defaults[name]:
                values, reasons = found.setdefault(name.removesuffix(".name"), (set(), {}))
                values.add(given[name])
                reasons[reason] = None
    groups: dict[str, list[str]] = {}
    for name, (values, reasons) in found.items():
        shown = f"{name}={next(iter(values))!r}" if len(values) == 1 else name
        groups.setdefault(" or ".join(reasons), []).append(shown)
    return "; ".join(
        f"{', '.join(names)}: {'has' if len(names) == 1 else 'have'} no effect with {reason}"
        for reason, names in groups.items()
    )
