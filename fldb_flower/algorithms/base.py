"""What every algorithm is: a state, and what it does in one communication round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from fldb_flower.algorithms import schedules
from fldb_flower.algorithms.schedules import Round
from fldb_flower.algorithms.solvers import SINGLE_TOLERANCE, TOLERANCE, Minimum, newton
from fldb_flower.bandit.estimate import Estimate
from fldb_flower.errors import ConvergenceError
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, Upload
from fldb_flower.linalg.arrays import Array
from fldb_flower.linalg.forms import make_form
from fldb_flower.settings import Settings

_FIRST_EXCHANGES = 50  # to find the start by: six are usual, and any start is good enough
APPROXIMATE_TOLERANCE = 1e-4  # decrement per duel: far less than a start differs from the truth


class Algorithm(ABC):
    """What the Central Server knows, and how a round changes it.

    Everything that a later round depends on is an array named in ``STATE``, so that a run can
    stop after any round and go on in another process.

    Parameters
    ----------
    settings : Settings
        Settings of the run.

    Attributes
    ----------
    theta_sync : Array
        Estimate that agents select arms with, (d,); 0 at first.
    information : Array
        W_sync, (d, d) or in another form; ``W_0 = (lambda / kappa_mu) I`` at first.
    form : Form
        Which the settings want matrices in.
    """

    STATE: tuple[str, ...] = ("theta_sync", "information")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.theta_sync: Array = np.zeros(settings.dimension)
        self.form = make_form(settings)
        self.information: Array = self.form.identity(settings.ridge / settings.kappa_mu)

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds of a run; by default what the schedule says."""
        return schedules.rounds(self.settings)

    def play(self, turn: Round) -> PlayRequest:
        """Return what the agents are told to play in a round."""
        return PlayRequest(turn.first, turn.last, Estimate(self.theta_sync, self.information))

    def round(self, federation: Federation, turn: Round) -> None:
        """Let the agents play a round, learn from its duels and acknowledge them.

        Raises
        ------
        ConvergenceError
            The estimate diverges; the state is as before.
        """
        if turn.learns:
            self._learn(federation, turn)
        else:
            federation.exchange(Broadcast(self.play(turn), None))
        federation.acknowledge()

    def _learn(self, federation: Federation, turn: Round) -> None:
        """Learn from a round, and check that all numbers of the state can be used."""
        before = self.state()
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # checked here
                self.learn(federation, turn)
                for name, array in self.state().items():
                    if not np.isfinite(array).all():
                        raise FloatingPointError(f"{name} is not finite")
        except (FloatingPointError, np.linalg.LinAlgError) as error:
            self.restore(before)
            raise ConvergenceError(f"iteration {turn.last}: {error}: {self.remedy()}") from None

    @abstractmethod
    def learn(self, federation: Federation, turn: Round) -> None:
        """Exchange as often as it takes, and change the state by what the uploads say.

        The last exchange of a round is the one that is acknowledged. If this raises, the
        state must be as before.
        """

    def remedy(self) -> str:
        """Return which settings to change when numbers overflow, for an error message."""
        settings = self.settings
        return (
            f"features, lambda={settings.ridge:g} or kappa_mu={settings.kappa_mu:g} are too far"
            " from 1"
        )

    def state(self) -> dict[str, Array]:
        """Return the state as arrays; see :meth:`restore`."""
        return {name: getattr(self, name) for name in self.STATE}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from where :meth:`state` was taken, with identical numbers."""
        for name in self.STATE:
            setattr(self, name, np.array(state[name]))


class Online(Algorithm):
    """An algorithm that starts at a minimiser and then needs one exchange a round.

    In round 1, t = 1, the minimiser of its duels' loss is found by exchanges.

    Attributes
    ----------
    theta_hat : Array
        Point at which gradients are taken, (d,).
    """

    HESSIAN = False
    STATE = (*Algorithm.STATE, "theta_hat")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.theta_hat: Array = np.zeros(settings.dimension)
        self._tolerance = SINGLE_TOLERANCE if settings.wire == "float32" else TOLERANCE
        if settings.matrix_form != "full":
            self._tolerance = APPROXIMATE_TOLERANCE  # quasi-Newton steps need many exchanges

    def learn(self, federation: Federation, turn: Round) -> None:
        """Find the first estimate, or take a step with the fresh duels' statistics."""
        if turn.first == 1:
            minimum = self._first_minimum(federation, turn)
            self.theta_sync = self.theta_hat = minimum.theta
            self.begin(minimum)
            upload = minimum.upload
        else:
            upload = federation.exchange(
                Broadcast(self.play(turn), self.theta_hat, hessian=self.HESSIAN, robust=True)
            )
            self.step(upload, turn)
        self.information = self.form.total([self.information, upload.information])

    @property
    @abstractmethod
    def first_ridge(self) -> float:
        """Ridge of the first minimiser."""

    @abstractmethod
    def begin(self, minimum: Minimum) -> None:
        """Take in the first estimate, which ``theta_sync`` and ``theta_hat`` are already."""

    @abstractmethod
    def step(self, upload: Upload, turn: Round) -> None:
        """Move ``theta_hat`` and ``theta_sync`` by a round's fresh duels."""

    def _first_minimum(self, federation: Federation, turn: Round) -> Minimum:
        theta = self.theta_sync
        start = federation.exchange(Broadcast(self.play(turn), theta, hessian=True))
        return newton(
            lambda trial: federation.exchange(Broadcast(None, trial, hessian=True)),
            start,
            theta,
            self.first_ridge,
            tolerance=self._tolerance,
            at_most=_FIRST_EXCHANGES,
            or_closest=True,
        )
