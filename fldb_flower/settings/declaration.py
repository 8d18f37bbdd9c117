"""Every setting of a run: name, default, meaning and range.

``conf/`` (snake_case, groups as nested keys) and Flower's run config in ``pyproject.toml``
(kebab-case, flat) are two spellings of :class:`Settings`; see
:mod:`fldb_flower.settings.spellings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fldb_flower.catalogue import ALGORITHMS, ENVIRONMENTS, SELECTIONS
from fldb_flower.errors import SettingsError, shown
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
    Limits,
    groups_of,
    setting,
)
from fldb_flower.settings.rules import (
    algorithm_with,
    algorithms,
    automatic,
    bound_of_theory,
    check_together,
    clip_length,
    devices,
    environments,
    longest_difference,
    nodes,
    only,
    private,
    ridge,
    ridge_of_curvature,
    scheduled,
    selected_pairs,
    simulation,
)

_OGD = (algorithms("fldb_ogd"),)
_COMMON = algorithm_with(lambda each: each.agents == "common")
_PERSONAL = algorithm_with(lambda each: each.agents == "personal")

MAX_DIMENSION = 4096  # W, (d, d), then takes 128 MiB

MAX_SIGMA = 1e6  # the regret of ten million agents then fits in an upload


@dataclass(frozen=True)
class EnvironmentSettings(Checked):
    """Arms and preferences."""

    GROUP: ClassVar[str] = "environment"
    NEEDS = (simulation,)

    name: str = setting("synthetic", "Source of arms and preferences.", choices=ENVIRONMENTS)
    sigma: float = setting(
        0.0,
        "Heterogeneity (synthetic): agent i has theta_i = theta + N(0, sigma^2 I).",
        Limits(0, MAX_SIGMA),
        needs=(environments("synthetic"),),
    )
    path: str = setting(
        "",
        "movielens: the ratings, as a file, a folder or the downloaded zip; duels: the folder"
        " with arms.csv and duels.csv.",
        needs=(environments("movielens", "duels"),),
    )
    play: str = setting(
        AUTO,
        "duels: replay, the policy selects pairs and gets recorded answers; predict, recorded duels"
        " are shown in random order; auto: replay if at least half of the people answered at least"
        " 90% of the pairs.",
        choices=(AUTO, "replay", "predict"),
        needs=(environments("duels"),),
    )
    max_people: int = setting(
        0,
        "duels: maximum number of people, the first in duels.csv; 0: no limit.",
        FROM_ZERO,
        needs=(environments("duels"),),
    )
    min_answers: int = setting(
        0,
        "duels: people with fewer answers are left out; predict: also below horizon.",
        FROM_ZERO,
        needs=(environments("duels"),),
    )
    users: str = setting(
        "drawn",
        "movielens: drawn, each agent draws a user in each iteration, as in the paper; persistent,"
        " each agent is one user.",
        choices=("drawn", "persistent"),
        needs=(environments("movielens"),),
    )


@dataclass(frozen=True)
class ScheduleSettings(Checked):
    """Communication rounds."""

    GROUP: ClassVar[str] = "schedule"
    NEEDS = (
        simulation,
        scheduled,
    )

    name: str = setting(
        "periodic",
        "Ends of rounds: periodic, every tau iterations; geometric, t = 1 and then ceil(ratio^k).",
        choices=("periodic", "geometric"),
    )
    ratio: float = setting(
        1.5,
        "Ratio of the geometric schedule.",
        Limits(1, MAX_REAL, excluded=1),
        needs=(only("schedule.name", "geometric"),),
    )


@dataclass(frozen=True)
class EngineSettings(Checked):
    """Engine of ``python -m simulations.run``."""

    GROUP: ClassVar[str] = "engine"

    name: str = setting(
        "vectorized",
        "vectorized, inprocess or flower.",
        choices=("vectorized", "inprocess", "flower"),
    )
    num_nodes: int = setting(
        2,
        "Flower nodes that host the agents (inprocess, flower).",
        Limits(1, 1_000_000),
        needs=(only("engine.name", "inprocess", "flower"),),
    )
    num_cpus: int = setting(
        1,
        "CPUs per Flower client (flower); a whole number.",
        Limits(1, 4096),
        needs=(only("engine.name", "flower"),),
    )
    num_gpus: float = setting(
        0.0,
        "GPUs per Flower client, also fractions (flower).",
        Limits(0, 1024),
        needs=(only("engine.name", "flower"),),
    )
    workers: int | str = setting(
        AUTO,
        "Processes that play the agents, at most; auto: one per available processor; ray: one per"
        " free CPU of the Ray cluster at RAY_ADDRESS, or of this machine (vectorized).",
        Limits(1, 4096),
        words=(RAY,),
        needs=(only("engine.name", "vectorized"),),
    )


_SECURE = (only("secure", True),)


@dataclass(frozen=True)
class DevicesSettings(Checked):
    """Rounds with real devices (mode=devices); Flower only."""

    GROUP: ClassVar[str] = "devices"
    NEEDS = (devices,)

    rounds: int = setting(0, "Rounds that learn before the run ends; 0: no limit.", FROM_ZERO)
    round_seconds: float = setting(
        60.0,
        "Seconds between the starts of two rounds; 0: without a pause.",
        SECONDS,
    )
    at_least: int = setting(1, "Connected devices required to start a round.", COUNT)
    first_duels: int | str = setting(
        AUTO,
        "Duels of all devices required by the first round; auto: 2 * dimension.",
        COUNT,
    )
    max_duels: int = setting(
        10_000,
        "Maximum number of duels per device and round; the others wait for the next round.",
        COUNT,
    )
    federation: str = setting(
        "fldb", "secure: name of the federation, as in the devices' vault.toml.", needs=_SECURE
    )
    helper: str = setting(
        "", "secure: address of the helper, like https://helper.example.org.", needs=_SECURE
    )
    helper_key: str = setting(
        "", "secure: absolute path of the helper's public key.", needs=_SECURE
    )
    helper_token: str = setting(
        "", "secure: absolute path of the file with the helper's token.", needs=_SECURE
    )


@dataclass(frozen=True)
class PrivacySettings(Checked):
    """Differential privacy: noise that is added to the sums of the agents' statistics."""

    GROUP: ClassVar[str] = "privacy"

    epsilon: float | str = setting(
        NONE,
        "Differential privacy: epsilon of the whole run; none: no noise.",
        Limits(1e-3, 1e3),
        why="smaller is more private, and privacy.epsilon=none adds no noise",
    )
    delta: float = setting(
        1e-6,
        "Differential privacy: probability by which chances may differ beyond epsilon.",
        Limits(1e-15, 0.1),
        needs=(private,),
    )
    unit: str = setting(
        "person",
        "What is protected: person, all contributions of one agent; answer, one answer.",
        choices=("person", "answer"),
        needs=(private,),
    )
    clip: float | str = setting(
        AUTO,
        "Length to which agents shorten longer differences in statistics; auto: max_difference if"
        " it is a number, and for synthetic sqrt(2 dimension), the root mean squared length.",
        POSITIVE,
        needs=(private,),
    )
    parties: int = setting(
        1,
        "Simulations: number of parties that add noise: 1, a trusted server; 2, server and helper,"
        " as with secure=true.",
        Limits(1, 2),
        needs=(private,),
    )
    min_variance: float = setting(
        0.001,
        "FLDB-Personal: lower limit of v with privacy, in units of 10 / clip^2, because noisy log"
        " losses may favour a v that is too small.",
        Limits(1e-3, 10),
        needs=(private, _PERSONAL),
    )


@dataclass(frozen=True)
class Settings(Checked):
    """All settings of one run.

    ``num_agents``, ``horizon`` and ``dimension`` are integers once it is built, also if ``auto`` is
    given. For ``environment=duels``, ``environment.play`` is then replay or predict. Names may be
    in kebab-case and in upper case (``"FLDB-OGD"``); numbers may be NumPy's.

    Raises
    ------
    SettingsError
        A value is of the wrong type or out of range, or two settings are incompatible.
    DataError
        Settings are auto, and the data that determine them cannot be read.

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

    mode: str = setting(
        "simulation", "simulation, or devices with real users.", choices=("simulation", "devices")
    )
    algorithm: str = setting("fldb_ogd", "Learning algorithm.", choices=ALGORITHMS)
    num_agents: int = setting(
        AUTO,
        "N, number of agents; auto: 100, or for environment=duels the number of people.",
        Limits(1, 10_000_000),
    )
    horizon: int = setting(
        AUTO,
        "T, number of iterations; auto: 500, or with environment.play=predict the median number of"
        " answers of a person.",
        COUNT,
    )
    num_arms: int = setting(
        10,
        "K, number of arms per agent and iteration; 2 with environment.play=predict.",
        Limits(2, 100_000),
        why="a duel needs two arms",
        needs=(simulation,),
    )
    dimension: int = setting(
        AUTO,
        "d, number of features per arm; auto: 5, or for environment=duels that of the study.",
        Limits(1, MAX_DIMENSION),
    )
    tau: int = setting(
        5,
        "Communication period: iterations between two exchanges. The paper uses 1.",
        COUNT,
        needs=(simulation, scheduled, only("schedule.name", "periodic")),
    )
    seed: int = setting(0, "Seed of all random streams.", FROM_ZERO)
    backend: str = setting(
        "numpy",
        "Array library of the agents: numpy, or PyTorch on cpu or cuda (the torch extra).",
        choices=("numpy", "cpu", "cuda"),
    )
    rng: str = setting(
        "numpy",
        "Random generator: numpy, the same draws on every backend; torch, different draws, made"
        " on the backend.",
        choices=("numpy", "torch"),
    )
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    dropout: float = setting(
        0.0, "Probability that a message is lost (engine=inprocess).", Limits(0, 1)
    )
    devices: DevicesSettings = field(default_factory=DevicesSettings)
    selection: str = setting(
        "ucb",
        "Selection rule for a pair of arms.",
        choices=SELECTIONS,
        needs=(algorithm_with(lambda each: each.agents != "uniform"), selected_pairs),
    )
    lambda_: float | str = setting(
        AUTO,
        "Ridge lambda; auto: 1 / horizon, as in the paper.",
        POSITIVE,
        why="W_0 = (lambda / kappa_mu) I must be invertible",
        needs=(ridge,),
    )
    kappa_mu: float = setting(
        1.0, "Lower bound on mu' used by the algorithms.", POSITIVE, needs=(bound_of_theory,)
    )
    delta: float = setting(
        0.1,
        "Failure probability of the confidence bound.",
        Limits(MIN_REAL, 1, excluded=1),
        needs=(bound_of_theory,),
    )
    beta_scale: float | str = setting(
        AUTO,
        "Factor on beta_t: 1 as in theory, 0 without exploration; auto: 1, and for FLDB-ONS the"
        " width ons_width instead of beta_t.",
        NOT_NEGATIVE,
        needs=(algorithm_with(lambda each: each.agents in {"common", "local"}), selected_pairs),
    )
    alpha: float = setting(
        1000.0,
        "FLDB-OGD: strong convexity; the step size is 1 / (alpha * step).",
        POSITIVE,
        needs=_OGD,
    )
    step_index: str = setting(
        "iteration",
        "FLDB-OGD: `step` is the iteration t, or the round t_c as printed in Algorithm 2.",
        choices=("iteration", "round"),
        needs=_OGD,
    )
    projection_center: str = setting(
        "initial",
        "FLDB-OGD: center of the projection: initial, theta_hat^(1) (the proof), or current,"
        " theta_hat^(t_c) (the text).",
        choices=("initial", "current"),
        needs=_OGD,
    )
    projection_radius: float | str = setting(
        AUTO,
        "FLDB-OGD: radius of the projection; auto: 2 r of the paper.",
        POSITIVE,
        needs=_OGD,
    )
    solver: str = setting(
        "newton",
        "FLDB-GD: minimisation of the loss; lbfgs needs the torch extra.",
        choices=("newton", "lbfgs", "gd"),
        needs=(algorithms("fldb_gd"),),
    )
    gd_steps: int = setting(
        100,
        "FLDB-GD, solver=gd: M, exchanges per iteration.",
        Limits(1, 1_000_000),
        needs=(algorithms("fldb_gd"), only("solver", "gd")),
    )
    gd_step_size: float | str = setting(
        AUTO,
        "FLDB-GD, solver=gd: eta; auto: 1 / (trace(W) / 4 + lambda), which is always stable.",
        POSITIVE,
        needs=(algorithms("fldb_gd"), only("solver", "gd")),
    )
    first_round: str = setting(
        AUTO,
        "FLDB-OGD, FLDB-ONS: first estimate: minimise, the minimiser of the first duels' loss, by"
        " several exchanges; step, a long Newton step from 0, by one exchange; auto: step with"
        " privacy, else minimise.",
        choices=(AUTO, "minimise", "step"),
        needs=(algorithm_with(lambda each: each.exchanges == "several_first"),),
    )
    ons_ridge: float = setting(
        1.0,
        "FLDB-ONS: lambda_0, the ridge; values below 0.5 are unsafe with few agents.",
        POSITIVE,
        needs=(ridge_of_curvature,),
    )
    ons_width: float = setting(
        0.75,
        "FLDB-ONS, beta_scale=auto: width of the confidence interval, in posterior standard"
        " deviations; 0 without exploration.",
        NOT_NEGATIVE,
        needs=(algorithms("fldb_ons"), only("beta_scale", AUTO), selected_pairs),
    )
    personal_ridge: float = setting(
        1.0,
        "FLDB-Personal: lambda_0, the precision of the prior of the common theta, in units of the"
        " mean squared length of the differences offered, divided by 10.",
        POSITIVE,
        needs=(_PERSONAL,),
    )
    personal_width: float = setting(
        0.5,
        "FLDB-Personal: width of the confidence interval, in posterior standard deviations.",
        NOT_NEGATIVE,
        needs=(_PERSONAL, selected_pairs),
    )
    personal_variance: float | str = setting(
        AUTO,
        "FLDB-Personal: v, how much agents differ, in squared units of theta; auto: estimated from"
        " predictions.",
        POSITIVE,
        needs=(algorithms("fldb_personal"),),
    )
    refit_ratio: float = setting(
        1.0,
        "LDB, alone, FLDB-Personal: agents fit theta_i to all own duels whenever their number has"
        " grown by this ratio, with a step of O(d^2) for each duel between; 1: after each duel.",
        Limits(1, MAX_REAL),
        needs=(algorithm_with(lambda each: each.agents in {"local", "personal"}),),
    )
    max_difference: float | str = setting(
        AUTO,
        "L, the maximum length of a difference of two arms; uploads that exceed it are rejected;"
        " auto: the environment's bound, and no limit for devices (Flower).",
        POSITIVE,
        needs=(longest_difference,),
    )
    matrix_form: str = setting(
        "full",
        "Representation of W and of Hessians: full, d^2 numbers; diagonal, d.",
        choices=("full", "diagonal"),
        needs=(_COMMON,),
    )
    robust: str = setting(
        "none",
        "Combination of the nodes' gradients: none, their sum; trimmed, a trimmed mean (Flower).",
        choices=("none", "trimmed"),
    )
    secure: bool = setting(
        False,
        "Secure sums: the server receives sums over the devices with noise, and no single upload;"
        " needs a helper and privacy.epsilon (mode=devices).",
    )
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    fraction_train: float = setting(
        1.0, "Share of the nodes sampled in each round (Flower).", SHARE
    )
    quorum: float = setting(
        1.0,
        "Share of the sampled nodes that must reply in a round (Flower).",
        SHARE,
        needs=(nodes,),
    )
    node_wait: float = setting(
        60.0,
        "Seconds to wait for the first nodes and for a quorum (Flower).",
        WAIT,
        needs=(nodes,),
    )
    reply_timeout: float = setting(
        300.0, "Seconds to wait for the replies of one exchange (Flower).", WAIT, needs=(nodes,)
    )
    resume: bool = setting(
        False, "Resume an interrupted run from its checkpoint; finished runs are skipped."
    )
    checkpoint_seconds: float = setting(
        30.0,
        "Seconds between two checkpoints of a run; 0: after every round.",
        SECONDS,
        needs=(simulation, only("engine.name", "vectorized")),
    )
    plot: bool = setting(
        True, "Draw regret.png; the jobs of a sweep draw it only if plot=true is given."
    )
    max_message_mb: float = setting(
        256.0,
        "Maximum size of a message, in MiB (Flower).",
        Limits(0, 1_000_000, excluded=0),
        needs=(nodes,),
    )
    output_dir: str = setting(
        "", "Absolute path for the results (Flower); empty: a new folder in ~/fldb-runs."
    )

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
    def takes_first_step(self) -> bool:
        """Whether the first estimate takes one exchange (``first_round``)."""
        if self.first_round != AUTO:
            return self.first_round == "step"
        return self.is_private and ALGORITHMS[self.algorithm].exchanges == "several_first"

    @property
    def is_private(self) -> bool:
        """Whether noise is added to the sums of statistics (``privacy.epsilon``)."""
        return self.privacy.epsilon != NONE

    @property
    def clip(self) -> float | None:
        """Length to which agents shorten longer differences; None without privacy."""
        return clip_length(self) if self.is_private else None
