"""Settings in groups: environment, schedule, engine, devices and privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fldb_flower.catalogue import ENVIRONMENTS
from fldb_flower.settings.entries import (
    AUTO,
    COUNT,
    FROM_ZERO,
    MAX_REAL,
    NONE,
    POSITIVE,
    RAY,
    SECONDS,
    Checked,
    Limits,
    between,
    setting,
)
from fldb_flower.settings.needs import (
    algorithm_with,
    devices,
    environments,
    only,
    private,
    scheduled,
    simulation,
)

ENGINES = ("vectorized", "inprocess", "flower")

MAX_SIGMA = 1e6  # the regret of ten million agents then fits in an upload


@dataclass(frozen=True)
class EnvironmentSettings(Checked):
    """Arms and preferences.

    Examples
    --------
    >>> from fldb_flower.settings import EnvironmentSettings, Settings
    >>> Settings(environment=EnvironmentSettings(sigma=0.3)).environment.name
    'synthetic'
    """

    GROUP: ClassVar[str] = "environment"

    name: str = setting(
        "synthetic", "Source of arms and preferences.", choices=ENVIRONMENTS, needs=(simulation,)
    )
    sigma: float = setting(
        0.0,
        "Heterogeneity (synthetic): agent i has theta_i = theta + N(0, sigma^2 I).",
        between(0, MAX_SIGMA),
        needs=(simulation, environments("synthetic")),
    )
    path: str = setting(
        "",
        "movielens: the ratings, as a file, a folder or the downloaded zip; duels: the folder"
        " with arms.csv and duels.csv.",
        needs=(simulation, environments("movielens", "duels")),
    )
    play: str = setting(
        AUTO,
        "duels: replay, the policy selects pairs and gets recorded answers; predict, recorded duels"
        " are shown in random order; auto: replay if at least half of the people answered at least"
        " 90% of the pairs.",
        choices=(AUTO, "replay", "predict"),
        needs=(simulation, environments("duels")),
    )
    max_people: int = setting(
        0,
        "duels: maximum number of people, the first in duels.csv; 0: no limit.",
        FROM_ZERO,
        needs=(simulation, environments("duels")),
    )
    min_answers: int = setting(
        0,
        "duels: people with fewer answers are left out; predict: also below horizon.",
        FROM_ZERO,
        needs=(simulation, environments("duels")),
    )
    users: str = setting(
        "drawn",
        "movielens: drawn, each agent draws a user in each iteration, as in the paper; persistent,"
        " each agent is one user.",
        choices=("drawn", "persistent"),
        needs=(simulation, environments("movielens")),
    )


@dataclass(frozen=True)
class ScheduleSettings(Checked):
    """Communication rounds.

    Examples
    --------
    >>> from fldb_flower.settings import ScheduleSettings, Settings
    >>> Settings(schedule=ScheduleSettings("geometric", ratio=2.0)).schedule.ratio
    2.0
    """

    GROUP: ClassVar[str] = "schedule"

    name: str = setting(
        "periodic",
        "Ends of rounds: periodic, every tau iterations; geometric, t = 1 and then ceil(ratio^k).",
        choices=("periodic", "geometric"),
        needs=(simulation, scheduled),
    )
    ratio: float = setting(
        1.5,
        "Ratio of the geometric schedule.",
        Limits(above=1, maximum=MAX_REAL),
        needs=(simulation, scheduled, only("schedule.name", "geometric")),
    )


@dataclass(frozen=True)
class EngineSettings(Checked):
    """Engine of ``python -m simulations.run``.

    Examples
    --------
    >>> from fldb_flower.settings import EngineSettings, Settings
    >>> Settings(engine=EngineSettings("inprocess", num_nodes=4)).engine.num_nodes
    4
    """

    GROUP: ClassVar[str] = "engine"

    name: str = setting("vectorized", "vectorized, inprocess or flower.", choices=ENGINES)
    num_nodes: int = setting(
        2,
        "Flower nodes that host the agents (inprocess, flower).",
        between(1, 1_000_000),
        needs=(only("engine.name", "inprocess", "flower"),),
    )
    num_cpus: int = setting(
        1,
        "CPUs per Flower client (flower); a whole number.",
        between(1, 4096),
        needs=(only("engine.name", "flower"),),
    )
    num_gpus: float = setting(
        0.0,
        "GPUs per Flower client, also fractions (flower).",
        between(0, 1024),
        needs=(only("engine.name", "flower"),),
    )
    workers: int | str = setting(
        AUTO,
        "Processes that play the agents, at most; auto: one per available processor; ray: one per"
        " free CPU of the Ray cluster at RAY_ADDRESS, or of this machine (vectorized).",
        between(1, 4096),
        words=(RAY,),
        needs=(only("engine.name", "vectorized"),),
    )


_SECURE = (devices, only("secure", True))


@dataclass(frozen=True)
class DevicesSettings(Checked):
    """Rounds with real devices (mode=devices); Flower only.

    Examples
    --------
    >>> from fldb_flower.settings import DevicesSettings
    >>> DevicesSettings(at_least=3).first_duels
    'auto'
    """

    GROUP: ClassVar[str] = "devices"

    rounds: int = setting(
        0, "Rounds that learn before the run ends; 0: no limit.", FROM_ZERO, needs=(devices,)
    )
    round_seconds: float = setting(
        60.0,
        "Seconds between the starts of two rounds; 0: without a pause.",
        SECONDS,
        needs=(devices,),
    )
    at_least: int = setting(
        1, "Connected devices required to start a round.", COUNT, needs=(devices,)
    )
    first_duels: int | str = setting(
        AUTO,
        "Duels of all devices required by the first round; auto: 2 * dimension.",
        COUNT,
        needs=(devices,),
    )
    max_duels: int = setting(
        10_000,
        "Maximum number of duels per device and round; the others wait for the next round.",
        COUNT,
        needs=(devices,),
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
    """Differential privacy: noise that is added to the sums of the agents' statistics.

    Examples
    --------
    >>> from fldb_flower.settings import PrivacySettings, Settings
    >>> settings = Settings(
    ...     algorithm="fldb_ons", first_round="step", privacy=PrivacySettings(epsilon=3)
    ... )
    >>> settings.is_private, settings.clip
    (True, 3.1622776601683795)
    """

    GROUP: ClassVar[str] = "privacy"

    epsilon: float | str = setting(
        NONE,
        "Differential privacy: epsilon of the whole run; none: no noise.",
        Limits(minimum=1e-3, maximum=1e3),
        why="smaller is more private, and privacy.epsilon=none adds no noise",
    )
    delta: float = setting(
        1e-6,
        "Differential privacy: probability by which chances may differ beyond epsilon.",
        Limits(minimum=1e-15, maximum=0.1),
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
        between(1, 2),
        needs=(private,),
    )
    min_variance: float = setting(
        0.001,
        "FLDB-Personal: lower limit of v with privacy, in units of 10 / clip^2, because noisy log"
        " losses may favour a v that is too small.",
        between(1e-3, 10),
        needs=(private, algorithm_with(lambda each: each.agents == "personal")),
    )
