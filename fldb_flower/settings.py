"""Every setting of a run: declared, explained and checked here, and only here.

The Hydra configuration (``conf/``, snake_case, groups as nested keys) and Flower's run
config (``[tool.flwr.app.config]``, kebab-case, flat: ``environment.sigma`` is
``environment-sigma``) are two spellings of :class:`Settings`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Real
from operator import attrgetter
from typing import Any, get_type_hints

from fldb_flower.errors import SettingsError, one_line

MODES = ("simulation", "devices")
ALGORITHMS = ("fldb_ogd", "fldb_gd", "fldb_ons", "ldb", "random")
ONLINE_ALGORITHMS = ("fldb_ogd", "fldb_ons")
ALONE = ("ldb", "random")  # agents do not collaborate: there is no common estimate
ENVIRONMENTS = ("synthetic", "movielens", "sentences")
ROBUST = ("none", "trimmed")
MATRIX_FORMS = ("full", "diagonal", "sketch")
ENGINES = ("vectorized", "inprocess", "flower")
SCHEDULES = ("periodic", "geometric")
SELECTIONS = ("ucb", "maxinp", "colstim", "maxpairucb", "thompson")
WIRES = ("float64", "float32")
BACKENDS = ("numpy", "cpu", "cuda")
DRAWS = ("numpy", "torch")
SOLVERS = ("newton", "lbfgs", "gd")

MAX_DIMENSION = 4096  # W is (d, d): 128 MiB then

LEAST, MOST = 1e-100, 1e100  # of real numbers: products and squares of two of them are finite
WHOLE = 2**63 - 1  # the largest whole number that Flower's run config can hold
MOST_SIGMA = 1e6  # regret summed over ten million agents fits in an upload then
_LONGEST = 500  # characters of a value in an error message
SECONDS = 1e9  # 30 years: an operating system's waits end not far beyond

EMBEDDING_DIMENSIONS = 384  # of sentences

MOVIELENS_ITEMS = 200  # items with most ratings, and users with most ratings
MOVIELENS_DIMENSIONS = 20  # users whose ratings make the features

AUTO = "auto"
"""A number that the software derives; the setting's help says how."""


def setting(
    default: Any,
    help: str,
    *,
    name: str | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    auto: bool = False,
    why: str = "",
) -> Any:
    """Declare a setting: a dataclass field that knows its help text and its range.

    Parameters
    ----------
    default : Any
        Default value.
    help : str
        One sentence for the user.
    name : str, optional
        What the user writes, where it is not the field's name (``lambda``).
    minimum, above, maximum, below : float, optional
        Inclusive and exclusive limits.
    choices : tuple of str
        The names allowed; kebab-case is accepted for each.
    auto : bool
        Whether ``"auto"`` is allowed beside a number.
    why : str
        Reason for the range, added to the error message.
    """
    limits = {"minimum": minimum, "above": above, "maximum": maximum, "below": below}
    metadata = {"help": help, "name": name, "choices": choices, "auto": auto, "why": why, **limits}
    return field(default=default, metadata=metadata)


def _range_text(metadata: Mapping[str, Any]) -> str:
    words = {"minimum": "at least", "above": "above", "maximum": "at most", "below": "below"}
    limits = ((text, metadata[key]) for key, text in words.items() if metadata[key] is not None)
    return " and ".join(f"{text} {'2^63 - 1' if n == WHOLE else f'{n:g}'}" for text, n in limits)


_ORIGIN: ContextVar[tuple[str, Callable[[Entry], str]]] = ContextVar(
    "_ORIGIN", default=("Python", attrgetter("attribute"))
)
"""Where the settings being built come from, and how they are spelled there."""


class _Checked:
    """A group of settings that checks its values when it is built, also by ``replace``."""

    def __post_init__(self) -> None:
        source, spelling = _ORIGIN.get()
        kind: type = type(self)
        for entry in _declared_by(kind):
            value = getattr(self, entry.field)
            if value is not entry.default:
                checked = entry.check(value, spelling(entry), source)
                object.__setattr__(self, entry.field, checked)


@dataclass(frozen=True)
class EnvironmentSettings(_Checked):
    """What the agents see and who answers."""

    name: str = setting("synthetic", "Where arms and preferences come from.", choices=ENVIRONMENTS)
    sigma: float = setting(
        0.0,
        "Heterogeneity (synthetic; sentences, rescaled): theta_i = theta + N(0, sigma^2 I) for"
        " agent i.",
        minimum=0,
        maximum=MOST_SIGMA,
    )
    path: str = setting(
        "",
        "movielens: the ratings, a file, a folder or the downloaded zip; sentences: a text file"
        " with a sentence a line, empty for our own.",
    )


@dataclass(frozen=True)
class ScheduleSettings(_Checked):
    """When agents and server exchange."""

    name: str = setting(
        "periodic",
        "periodic: every tau iterations; geometric: at t = 1, then ceil(ratio^k).",
        choices=SCHEDULES,
    )
    ratio: float = setting(1.5, "Growth of the geometric schedule.", above=1, maximum=MOST)


@dataclass(frozen=True)
class EngineSettings(_Checked):
    """What carries the exchanges: `python -m simulations.run` only."""

    name: str = setting("vectorized", "vectorized, inprocess or flower.", choices=ENGINES)
    num_nodes: int = setting(
        2,
        "Flower nodes that share the agents (inprocess, flower).",
        minimum=1,
        maximum=1_000_000,
    )
    num_cpus: int = setting(
        1, "CPUs of one Flower client (flower); a whole number.", minimum=1, maximum=4096
    )
    num_gpus: float = setting(
        0.0, "Share of a GPU for one Flower client (flower).", minimum=0, maximum=1024
    )


@dataclass(frozen=True)
class DevicesSettings(_Checked):
    """Rounds with real devices (mode=devices): Flower only."""

    rounds: int = setting(
        0, "Rounds to learn from before the run ends; 0: no end.", minimum=0, maximum=WHOLE
    )
    round_seconds: float = setting(
        60.0,
        "Seconds between the beginnings of two rounds; 0: one after the other.",
        minimum=0,
        maximum=SECONDS,
    )
    at_least: int = setting(
        1, "Devices that must be connected for a round to begin.", minimum=1, maximum=WHOLE
    )
    first_duels: int | str = setting(
        AUTO,
        "Duels of all devices that the first round needs; auto: 2 * dimension.",
        minimum=1,
        maximum=WHOLE,
        auto=True,
    )
    max_duels: int = setting(
        10_000,
        "Duels of one device that count in one round; more wait for the next.",
        minimum=1,
        maximum=WHOLE,
    )


@dataclass(frozen=True)
class Settings(_Checked):
    """All settings of one run.

    Names may be in kebab-case and in any case (``"FLDB-OGD"``); numbers may be NumPy's.

    Raises
    ------
    SettingsError
        A value is of the wrong type or out of range, or two settings do not go together.
    """

    mode: str = setting(
        "simulation", "simulation, or devices on which real people answer.", choices=MODES
    )
    algorithm: str = setting("fldb_ogd", "Which algorithm learns.", choices=ALGORITHMS)
    num_agents: int = setting(100, "N, the number of agents.", minimum=1, maximum=10_000_000)
    horizon: int = setting(500, "T, the number of iterations.", minimum=1, maximum=WHOLE)
    num_arms: int = setting(
        10,
        "K, the arms an agent sees in one iteration.",
        minimum=2,
        maximum=100_000,
        why="a duel needs two arms",
    )
    dimension: int = setting(
        5, "d, the number of features of an arm.", minimum=1, maximum=MAX_DIMENSION
    )
    tau: int = setting(
        5,
        "Communication period: iterations between two exchanges. The paper's is 1.",
        minimum=1,
        maximum=WHOLE,
    )
    seed: int = setting(0, "Seed of every random stream.", minimum=0, maximum=WHOLE)
    backend: str = setting(
        "numpy",
        "Array library of the agents: numpy, or PyTorch on cpu or cuda (the torch extra).",
        choices=BACKENDS,
    )
    rng: str = setting(
        "numpy",
        "Random generator: numpy gives the same draws on every backend; torch draws on the"
        " backend, different numbers.",
        choices=DRAWS,
    )
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    dropout: float = setting(
        0.0,
        "Chance that a message is lost on its way (engine=inprocess).",
        minimum=0,
        maximum=1,
    )
    devices: DevicesSettings = field(default_factory=DevicesSettings)
    selection: str = setting("ucb", "How a pair of arms is selected.", choices=SELECTIONS)
    lambda_: float | str = setting(
        AUTO,
        "Ridge lambda; auto: 1 / horizon, as in the paper.",
        name="lambda",
        minimum=LEAST,
        maximum=MOST,
        auto=True,
        why="W_0 = (lambda / kappa_mu) I must be invertible",
    )
    kappa_mu: float = setting(
        1.0, "Lower bound on mu' used by the algorithms.", minimum=LEAST, maximum=MOST
    )
    delta: float = setting(
        0.1, "Failure probability of the confidence bound.", minimum=LEAST, below=1
    )
    beta_scale: float = setting(
        1.0, "Factor on beta_t: 1 is the theory, 0 never explores.", minimum=0, maximum=MOST
    )
    alpha: float = setting(
        1000.0,
        "FLDB-OGD: strong convexity; the step size is 1 / (alpha * step).",
        minimum=LEAST,
        maximum=MOST,
    )
    step_index: str = setting(
        "iteration",
        "FLDB-OGD: `step` is the iteration t, or the round t_c as Algorithm 2 prints it.",
        choices=("iteration", "round"),
    )
    projection_center: str = setting(
        "initial",
        "FLDB-OGD: centre of the projection: theta_hat^(1) (proof) or theta_hat^(t_c) (text).",
        choices=("initial", "current"),
    )
    projection_radius: float | str = setting(
        AUTO,
        "FLDB-OGD: radius of that ball; auto: 2 r of the paper.",
        minimum=LEAST,
        maximum=MOST,
        auto=True,
    )
    solver: str = setting(
        "newton",
        "FLDB-GD: how the loss is minimised; lbfgs needs the torch extra.",
        choices=SOLVERS,
    )
    gd_steps: int = setting(
        100, "FLDB-GD, solver=gd: M, exchanges in each iteration.", minimum=1, maximum=1_000_000
    )
    gd_step_size: float | str = setting(
        AUTO,
        "FLDB-GD, solver=gd: eta; auto: 1 / (trace(W) / 4 + lambda), always stable.",
        minimum=LEAST,
        maximum=MOST,
        auto=True,
    )
    ons_ridge: float = setting(
        1.0,
        "FLDB-ONS: lambda_0, the ridge; below 0.5 is unsafe with few agents.",
        minimum=LEAST,
        maximum=MOST,
    )
    max_difference: float | str = setting(
        AUTO,
        "L, the longest difference of two arms; uploads that need longer ones are refused;"
        " auto: what the environment can draw, and no limit for devices (Flower).",
        minimum=LEAST,
        maximum=MOST,
        auto=True,
    )
    matrix_form: str = setting(
        "full",
        "Representation of W and of Hessians: full, d^2 numbers; diagonal, d; sketch (frequent"
        " directions), sketch_rank * d.",
        choices=MATRIX_FORMS,
    )
    sketch_rank: int = setting(
        16, "matrix_form=sketch: m, the number of directions.", minimum=1, maximum=WHOLE
    )
    wire: str = setting(
        "float64",
        "What numbers are rounded to on their way: float32 halves the bytes (Flower).",
        choices=WIRES,
    )
    robust: str = setting(
        "none",
        "How the nodes' gradients are combined: none, their sum; trimmed, a trimmed mean (Flower).",
        choices=ROBUST,
    )
    fraction_train: float = setting(
        1.0, "Share of the nodes asked in each round, drawn anew (Flower).", above=0, maximum=1
    )
    quorum: float = setting(
        1.0, "Share of the nodes whose reply makes a round count (Flower).", above=0, maximum=1
    )
    node_wait: float = setting(
        60.0,
        "Seconds to wait for the first nodes and for a quorum (Flower).",
        above=0,
        maximum=SECONDS,
    )
    reply_timeout: float = setting(
        300.0,
        "Seconds to wait for the replies of one exchange (Flower).",
        above=0,
        maximum=SECONDS,
    )

    resume: bool = setting(
        False, "Go on with what was begun: from its checkpoint; finished runs are skipped."
    )
    checkpoint_seconds: float = setting(
        30.0,
        "Seconds between two checkpoints of a run; 0: one after every round.",
        minimum=0,
        maximum=SECONDS,
    )
    plot: bool = setting(True, "Draw regret.png; the jobs of a sweep draw it only with plot=true.")
    max_message_mb: float = setting(
        256.0, "Largest message that is read, in MiB (Flower).", above=0, maximum=1_000_000
    )
    output_dir: str = setting(
        "", "Absolute folder of the results (Flower); empty: a new one under ~/fldb-runs."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        source, _ = _ORIGIN.get()
        for name, kind in _groups().items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise SettingsError(
                    f"{name}={_shown(value)} (from {source}): must be {kind.__name__}(...)"
                )
        _check_together(self, source)

    @property
    def ridge(self) -> float:
        """Ridge lambda as a number (``1 / horizon`` for ``auto``)."""
        return 1.0 / self.horizon if self.lambda_ == AUTO else float(self.lambda_)


@dataclass(frozen=True)
class Entry:
    """One declared setting as tools see it.

    Attributes
    ----------
    owner : type
        The dataclass that declares it.
    path : tuple of str
        Keys from the root, as Hydra's users write them: ``("environment", "sigma")``.
    field : str
        Name of the dataclass field, where it differs from the last key (``lambda_``).
    default : Any
        Default value.
    kinds : tuple of type
        Types of the value.
    metadata : Mapping
        What :func:`setting` was given.
    """

    owner: type
    path: tuple[str, ...]
    field: str
    default: Any
    kinds: tuple[type, ...]
    metadata: Mapping[str, Any]

    @property
    def dotted(self) -> str:
        """Hydra's spelling: ``environment.sigma``."""
        return ".".join(self.path)

    @property
    def attribute(self) -> str:
        """Python's spelling: ``environment.sigma``, and ``lambda_``."""
        return ".".join((*self.path[:-1], self.field))

    @property
    def kebab(self) -> str:
        """Flower's spelling: ``environment-sigma``; a group's ``name`` is the group's key."""
        path = self.path[:-1] if self.path[-1] == "name" else self.path
        return "-".join(path).replace("_", "-")

    def value(self, settings: Settings) -> Any:
        """Return this setting's value."""
        node: Any = settings
        for group in self.path[:-1]:
            node = getattr(node, group)
        return getattr(node, self.field)

    def check(self, value: Any, key: str, source: str) -> Any:
        """Return the value in its declared type, or say what would be right.

        Parameters
        ----------
        value : Any
            What the user gave.
        key, source : str
            What the user called the setting, and where, for the error message.

        Raises
        ------
        SettingsError
            The type or the range does not fit.
        """
        choices = self.metadata["choices"]
        if choices:
            return self._check_choice(value, choices, key, source)
        if self.metadata["auto"] and isinstance(value, str) and value == AUTO:
            return AUTO
        checked = self._check_type(value, key, source)
        if isinstance(checked, int | float) and bool not in self.kinds:
            self._check_range(checked, key, source)
        return checked

    def _fail(self, value: Any, key: str, source: str, right: str) -> SettingsError:
        why = f" ({self.metadata['why']})" if self.metadata["why"] else ""
        return SettingsError(f"{key}={_shown(value)} (from {source}): must be {right}{why}")

    def _check_choice(self, value: Any, choices: tuple[str, ...], key: str, source: str) -> str:
        name = value.replace("-", "_").lower() if isinstance(value, str) else ""
        if name not in choices:
            raise self._fail(
                value, key, source, f"one of {', '.join(choices)}{suggestion(name, choices)}"
            )
        return str(name)

    def _check_type(self, value: Any, key: str, source: str) -> Any:
        if bool in self.kinds:
            if not isinstance(value, bool):
                raise self._fail(value, key, source, "true or false")
            return value
        if self.kinds == (str,):
            if not isinstance(value, str):
                raise self._fail(value, key, source, "a text")
            return str(value)
        is_number = _is_finite(value)
        if int in self.kinds:
            if not is_number or value != int(value):
                raise self._fail(value, key, source, self._number_text("a whole number"))
            return int(value)
        if not is_number:
            raise self._fail(value, key, source, self._number_text("a number"))
        return float(value)

    def _number_text(self, kind: str) -> str:
        auto = " or auto" if self.metadata["auto"] else ""
        return f"{kind}, {_range_text(self.metadata)}{auto}".replace(", or", " or")

    def _check_range(self, number: float, key: str, source: str) -> None:
        limits = self.metadata
        outside = (
            (limits["minimum"] is not None and number < limits["minimum"])
            or (limits["above"] is not None and number <= limits["above"])
            or (limits["maximum"] is not None and number > limits["maximum"])
            or (limits["below"] is not None and number >= limits["below"])
        )
        if outside:
            raise self._fail(number, key, source, _range_text(limits))


def _is_finite(value: object) -> bool:
    """Whether this is a number, neither NaN nor infinite, that fits a double."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _shown(value: object) -> str:
    """Return what a value is, on one line, whatever it is."""
    try:
        text = one_line(repr(value))
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    except Exception:  # a repr that fails, as that of a whole number of 5,000 digits
        return f"<{type(value).__name__}>"


def suggestion(name: Any, known: tuple[str, ...]) -> str:
    """Return "; did you mean X?" if a known name is close, else nothing."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


_hints = functools.cache(get_type_hints)  # a device builds its settings with each message


def entries() -> Iterator[Entry]:
    """Yield every declared setting, groups flattened."""
    return iter(_declared(Settings))


@functools.cache
def _declared(cls: type, path: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    """Return the settings of a class and of its groups."""
    hints = _hints(cls)
    found: list[Entry] = []
    for item in dataclasses.fields(cls):
        kind = hints[item.name]
        name = item.metadata.get("name") or item.name
        if dataclasses.is_dataclass(kind):
            found += _declared(kind, (*path, name))  # type: ignore[arg-type]
        else:
            kinds = (kind,) if isinstance(kind, type) else kind.__args__
            entry = Entry(cls, (*path, name), item.name, item.default, kinds, item.metadata)
            found.append(entry)
    return tuple(found)


@functools.cache
def _declared_by(cls: type) -> tuple[Entry, ...]:
    """Return the settings that a class declares itself, or a class that it is derived from."""
    return tuple(entry for entry in entries() if issubclass(cls, entry.owner))


@functools.cache
def _groups() -> dict[str, type]:
    """Return the groups of settings by name."""
    hints = _hints(Settings)
    return {
        item.name: hints[item.name]
        for item in dataclasses.fields(Settings)
        if dataclasses.is_dataclass(hints[item.name])
    }


def check_value(name: str, value: Any) -> Any:
    """Return a value that is given in Python outside of :class:`Settings`, checked as there.

    Parameters
    ----------
    name : str
        The setting, as Hydra's users write it: ``"schedule.ratio"``.
    value : Any
        What was given.

    Raises
    ------
    SettingsError
        The type or the range does not fit.
    """
    entry = next(each for each in entries() if each.dotted == name)
    return entry.check(value, entry.path[-1], "Python")


RENAMED = {"information": "matrix_form", "device": "backend"}
"""Former names of settings."""


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved settings with former names, in snake_case, replaced by current ones."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


def current_identity(identity: str) -> str:
    """Return a saved run identity, ``name=value`` lines, with former names replaced.

    The names keep the spelling of the identity, snake_case or kebab-case.
    """
    is_kebab = "\nkappa-mu=" in identity
    for old, new in RENAMED.items():
        name = new.replace("_", "-") if is_kebab else new
        identity = re.sub(rf"^{old}=", f"{name}=", identity, flags=re.MULTILINE)
    return identity


_FLOWER_ONLY = ("output_dir", "mode", "devices")
_HYDRA_ONLY = ("engine", "dropout")


def flower_entries() -> Iterator[Entry]:
    """Yield the settings of Flower's run config."""
    return (entry for entry in entries() if entry.path[0] not in _HYDRA_ONLY)


def hydra_entries() -> Iterator[Entry]:
    """Yield the settings of the Hydra configuration (``hydra.run.dir`` says where to write)."""
    return (entry for entry in entries() if entry.path[0] not in _FLOWER_ONLY)


def from_flat(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from Flower's run config.

    Parameters
    ----------
    values : Mapping
        Kebab-case keys to TOML values; what is absent keeps its default.
    source : str
        Where the values came from, for error messages.

    Raises
    ------
    SettingsError
        A key is unknown, or a value is of the wrong type or out of range.
    """
    return _build(_spelled("kebab"), values, source, "kebab")


def from_nested(values: Mapping[str, Any], source: str) -> Settings:
    """Build settings from nested snake_case keys, as Hydra composes them; see :func:`from_flat`."""
    return _build(_spelled("dotted"), dict(_flatten(values)), source, "dotted")


@functools.cache
def _spelled(spelling: str) -> Mapping[str, Entry]:
    known = flower_entries() if spelling == "kebab" else hydra_entries()
    return {getattr(entry, spelling): entry for entry in known}


def to_flat(settings: Settings) -> dict[str, Any]:
    """Return the settings as Flower's run config holds them."""
    return {entry.kebab: entry.value(settings) for entry in flower_entries()}


def defaults_nested() -> dict[str, Any]:
    """Return every default, nested as Hydra composes them."""
    return to_nested(Settings())


def to_nested(settings: Settings) -> dict[str, Any]:
    """Return the settings as :func:`from_nested` reads them: what ``config.yaml`` holds."""
    nested: dict[str, Any] = {}
    for entry in hydra_entries():
        node = nested
        for group in entry.path[:-1]:
            node = node.setdefault(group, {})
        node[entry.path[-1]] = entry.value(settings)
    return nested


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def require_current_name(key: str, source: str) -> None:
    """Raise a SettingsError if this is the former name of a setting."""
    if key in RENAMED:
        name = RENAMED[key]
        spelled = name if "_" not in name else f"{name} ({name.replace('_', '-')} with Flower)"
        raise SettingsError(f"{key} (from {source}): this setting is now called {spelled}")


def _build(
    known: Mapping[str, Entry], values: Mapping[str, Any], source: str, spelling: str
) -> Settings:
    for key in values:
        if key not in known:
            require_current_name(key, source)
            hint = suggestion(key, tuple(known)) or "; the README lists the settings"
            raise SettingsError(f"{one_line(key)} (from {source}): there is no such setting{hint}")
    given: dict[type, dict[str, Any]] = {}
    for key, value in values.items():
        entry = known[key]
        given.setdefault(entry.owner, {})[entry.field] = value
    token = _ORIGIN.set((source, attrgetter(spelling)))
    try:
        groups = {name: kind(**given.get(kind, {})) for name, kind in _groups().items()}
        return Settings(**given.get(Settings, {}), **groups)
    finally:
        _ORIGIN.reset(token)


def _check_together(settings: Settings, source: str) -> None:
    """Check what depends on more than one setting."""
    nodes, agents = settings.engine.num_nodes, settings.num_agents
    if settings.engine.name != "vectorized" and nodes > agents:
        raise SettingsError(
            f"engine.num_nodes={nodes} (from {source}): must be at most num_agents={agents},"
            " because each node hosts at least one agent"
        )
    if settings.dropout > 0 and settings.engine.name != "inprocess":
        raise SettingsError(
            f"dropout={settings.dropout:g} (from {source}): needs engine=inprocess, not"
            f" engine={settings.engine.name}"
        )
    if settings.robust != "none" and settings.algorithm not in ONLINE_ALGORITHMS:
        raise SettingsError(
            f"robust={settings.robust!r} (from {source}): needs algorithm"
            f" {' or '.join(ONLINE_ALGORITHMS)}, not {settings.algorithm}"
        )
    if settings.mode == "devices" and settings.algorithm not in ONLINE_ALGORITHMS:
        raise SettingsError(
            f"algorithm={settings.algorithm!r} (from {source}): must be one of"
            f" {', '.join(ONLINE_ALGORITHMS)} with mode=devices: the others need every device, or"
            " no server, in every round"
        )
    if settings.matrix_form != "full":
        _check_matrix_form(settings, source)
    if settings.rng == "torch" and settings.backend == "numpy":
        raise SettingsError(
            f"rng='torch' (from {source}): needs backend=cpu or backend=cuda, not backend=numpy"
        )
    if settings.environment.name == "sentences" and settings.dimension > EMBEDDING_DIMENSIONS:
        raise SettingsError(
            f"dimension={settings.dimension} (from {source}): must be at most"
            f" {EMBEDDING_DIMENSIONS} for sentences, whose embeddings have that many"
        )
    if settings.environment.name == "movielens":
        _check_movielens(settings, source)


def _check_matrix_form(settings: Settings, source: str) -> None:
    what = f"matrix_form={settings.matrix_form!r} (from {source})"
    if settings.algorithm == "ldb":
        raise SettingsError(f"{what}: algorithm=ldb sends no matrices; its agents keep full ones")
    if settings.algorithm == "fldb_gd" and settings.solver == "newton":
        raise SettingsError(
            f"{what}: solver=newton needs the Hessian, all d^2 numbers of it, for algorithm=fldb_gd"
            " to find its minimisers; use solver=lbfgs or solver=gd"
        )
    if settings.matrix_form == "sketch" and settings.sketch_rank > settings.dimension - 2:
        raise SettingsError(
            f"sketch_rank={settings.sketch_rank} (from {source}): must be at most dimension - 2 ="
            f" {settings.dimension - 2}, or there is nothing to save"
        )


def _check_movielens(settings: Settings, source: str) -> None:
    if settings.dimension > MOVIELENS_DIMENSIONS:
        raise SettingsError(
            f"dimension={settings.dimension} (from {source}): must be at most"
            f" {MOVIELENS_DIMENSIONS} for MovieLens, whose features are the SVD of"
            f" {MOVIELENS_DIMENSIONS} users' ratings"
        )
    if settings.num_arms > MOVIELENS_ITEMS:
        raise SettingsError(
            f"num_arms={settings.num_arms} (from {source}): must be at most {MOVIELENS_ITEMS}"
            " for MovieLens, which has that many items"
        )
    if not settings.environment.path:
        raise SettingsError(
            f"environment.path is empty (from {source}): name the MovieLens ratings that you"
            " downloaded, a file, a folder or the zip"
        )
