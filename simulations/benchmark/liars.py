"""Benchmark section `liars`: regret with a dishonest device, with and without secure sums."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fldb_flower.algorithms import run_algorithm
from fldb_flower.bandit.personal import PersonalEstimates, Shares
from fldb_flower.bandit.prior import VARIANCES, CommonPrior, ShareChange, scale_of
from fldb_flower.environments import max_difference
from fldb_flower.environments.synthetic import Synthetic
from fldb_flower.errors import FederationError
from fldb_flower.federation.agents import AgentGroup, total_of_blocks
from fldb_flower.federation.exchange import Broadcast, Federation, Upload, statistics
from fldb_flower.federation.history import History
from fldb_flower.federation.plausibility import implausible
from fldb_flower.federation.share_bounds import implausible_shares
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import make_form
from fldb_flower.secure import field
from fldb_flower.secure.encoding import LARGEST_SUM, Encoding
from fldb_flower.secure.field import IntArray
from fldb_flower.settings import Settings, from_nested
from fldb_flower.wire.secure_sums import SecureSums
from fldb_flower.wire.secure_upload import numbers_of
from simulations.pools import map_in_processes

COMMON = {"num_agents": 100, "num_arms": 10, "dimension": 5, "horizon": 300, "tau": 10}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fldb_ons": {"first_round": "step"},
    "fldb_personal": {},
    "random": {},
}
LEARNING = ("fldb_ons", "fldb_personal")
LIES = ("none", "loud", "bounds", "crowd", "random")
FACTORS = (64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0)  # of `crowd`


class Case(NamedTuple):
    """One row of the table: an algorithm, whether sums are secure, and the lie of one device."""

    algorithm: str
    secure: bool
    lie: str


class Outcome(NamedTuple):
    """The regret of a run, and of each exchange the factor of the lie; 0 if it was refused."""

    regret: float
    factors: list[float]


class Liar:
    """The numbers of a dishonest device.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    lie : str
        See :func:`liars`.
    """

    def __init__(self, settings: Settings, lie: str) -> None:
        self._settings, self._lie = settings, lie
        self._form = make_form(settings)
        self._longest = max_difference(settings)
        theta = Synthetic(settings, range(1)).theta
        self._direction = theta / np.linalg.norm(theta)
        d = settings.dimension
        self._estimates = PersonalEstimates(1, d, settings.personal_ridge)
        none = np.zeros(1)
        self._sent = Shares(
            np.zeros((1, d, d)), np.zeros((1, d)), np.zeros(len(VARIANCES)), none, none
        )
        self._generator = np.random.default_rng(settings.seed)

    def upload(self, broadcast: Broadcast, honest: Upload, encoding: Encoding) -> Upload:
        """Return the false upload instead of an honest one."""
        if self._lie == "none":
            return honest
        if self._lie == "bounds":
            return self._at_bounds(broadcast, honest, encoding)
        duels = honest.num_duels
        x = np.repeat(self._longest * self._direction[None], duels, axis=0)
        if not broadcast.shares:
            false = statistics(broadcast, x, np.zeros(duels), x, self._form)
            return false._replace(outcomes=honest.outcomes)
        return honest._replace(shares=self._change(broadcast, x))

    def integers(self, upload: Upload, broadcast: Broadcast, encoding: Encoding) -> IntArray:
        """Return an upload, which may exceed its bounds, as integers."""
        if self._lie == "random":
            return self._generator.integers(-LARGEST_SUM, LARGEST_SUM, encoding.size)
        return as_integers(numbers_of(upload, broadcast), encoding)

    def _change(self, broadcast: Broadcast, x: FloatArray) -> ShareChange:
        """Return the change of the share of a person who lost all these duels."""
        assert broadcast.play is not None
        prior, sent = broadcast.play.estimate, self._sent
        assert isinstance(prior, CommonPrior)
        scale = np.full(1, prior.scale or float(scale_of(self._longest**2)))
        self._estimates.receive(prior, sent, scale)
        losses = sent.losses + len(x) * self._estimates.losses(x[:1], np.zeros(1))
        self._estimates.add_many(x[None], np.zeros((1, len(x))))
        squares = sent.squares + len(x) * self._longest**2
        self._sent = Shares(*self._estimates.shares(), losses, squares, np.ones(1))
        new = (now - before for now, before in zip(self._sent, sent, strict=True))
        precision, shift, losses, squares, members = new
        return ShareChange(precision[0], shift[0], losses, float(squares[0]), float(members[0]))

    def _at_bounds(self, broadcast: Broadcast, honest: Upload, encoding: Encoding) -> Upload:
        """Return numbers at the bounds of the encoding, but the honest number of duels."""
        signs = np.sign(self._direction)
        outer = np.outer(signs, signs)
        bounds = [block.bound for block in encoding.blocks]
        if broadcast.shares:
            shift, precision, losses, squares, _ = bounds[:5]
            assert honest.shares is not None
            for_smallest_v = np.full(len(VARIANCES), losses)
            for_smallest_v[0] = 0.0
            change = (precision * outer, -shift * signs, for_smallest_v, squares)
            return honest._replace(shares=ShareChange(*change, honest.shares.members))
        gradient, information = bounds[:2]
        hessian = bounds[2] * outer if broadcast.hessian else None
        return honest._replace(
            gradient=gradient * signs, information=information * outer, hessian=hessian
        )


class DishonestFederation(Federation):
    """A federation of N devices with one agent each, the first of which is dishonest.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    history : History
        Records the regret.
    lie : str
        See :func:`liars`.
    """

    def __init__(self, settings: Settings, history: History, lie: str) -> None:
        super().__init__(history)
        self._settings, self._lie = settings, lie
        agents = settings.num_agents
        self._groups = [AgentGroup(settings, range(1)), AgentGroup(settings, range(1, agents))]
        self._liar = Liar(settings, lie)
        self._sums = SecureSums(settings)
        self._counted = 0
        self.factors: list[float] = []  # of each exchange; 0 if the lie was refused

    def collect(self, broadcast: Broadcast) -> Upload:
        """Return the sum of the uploads, one of which is false."""
        own, others = (group.answer(broadcast, self._counted) for group in self._groups)
        whole = total_of_blocks([own, others])
        if not broadcast.learns:
            return whole
        encoding = self._sums.encoding(broadcast, self._settings.num_agents)
        false = self._liar.upload(broadcast, own, encoding)
        for factor in FACTORS if self._lie == "crowd" else (1.0,):
            sums = self._secure if self._settings.secure else self._checked
            if accepted := sums(broadcast, times(false, factor), others, whole):
                self.factors.append(factor)
                return accepted
        self.factors.append(0.0)
        return others._replace(outcomes=whole.outcomes)

    def _secure(
        self, broadcast: Broadcast, false: Upload, others: Upload, whole: Upload
    ) -> Upload | None:
        """Return the sum that the server accepts, or None."""
        agents = self._settings.num_agents
        encoding = self._sums.encoding(broadcast, agents)
        honest = as_integers(numbers_of(others, broadcast), encoding)
        lie = self._liar.integers(false, broadcast, encoding)
        summed = field.to_integers(field.add(field.from_integers(honest), field.from_integers(lie)))
        rest = [np.zeros_like(summed)] * (agents - 1)
        try:
            return self._sums.open(
                [summed, *rest], broadcast, agents, duels=whole.num_duels, outcomes=whole.outcomes
            )
        except FederationError:
            return None

    def _checked(
        self, broadcast: Broadcast, false: Upload, others: Upload, whole: Upload
    ) -> Upload | None:
        """Return the sum with an upload that is checked by itself, or None."""
        assert broadcast.play is not None
        longest, ridge = max_difference(self._settings), self._settings.personal_ridge
        if broadcast.shares:
            answers = [broadcast.play.last]
            (reason,) = implausible_shares(
                [false], answers, broadcast, ridge=ridge, longest=longest
            )
        else:
            (reason,) = implausible([false], broadcast, longest)
        return None if reason else total_of_blocks([false, others])

    def mark_counted(self) -> None:
        """Store the last iteration whose duels are counted."""
        self._counted = self.history.iteration


def times(upload: Upload, factor: float) -> Upload:
    """Return the statistics of an upload multiplied by a factor, with the same number of duels."""
    change = upload.shares
    if change is not None:
        precision, shift, losses, squares = (factor * number for number in change[:-1])
        scaled = ShareChange(precision, shift, losses, squares, change.members)
        return upload._replace(shares=scaled)
    hessian = upload.hessian
    return upload._replace(
        gradient=factor * upload.gradient,
        information=factor * upload.information,
        hessian=None if hessian is None else factor * hessian,
    )


def as_integers(numbers: FloatArray, encoding: Encoding) -> IntArray:
    """Return numbers as integers, also beyond their bounds."""
    exponents = np.repeat(encoding.exponents, [block.size for block in encoding.blocks])
    integers: IntArray = np.rint(np.ldexp(numbers, exponents)).astype(np.int64)
    return integers


def run(case: Case, seed: int, **values: Any) -> Outcome:
    """Return the outcome of one run."""
    chosen = {"algorithm": case.algorithm, "secure": case.secure, "seed": seed, **values}
    settings = from_nested({**COMMON, **ALGORITHMS[case.algorithm], **chosen}, "the benchmark")
    history = History(settings.horizon)
    federation = DishonestFederation(settings, history, case.lie)
    run_algorithm(federation, settings)
    return Outcome(round(history.regret, 4), federation.factors)


def liars(seeds: int = 10) -> pd.DataFrame:
    """Run each algorithm with each lie of one device among 100; return regret by seed.

    - *none*: all devices are honest.
    - *loud*: for each duel, the device reports a difference of length L along the true theta, and
      that the better arm lost.
    - *bounds*: all numbers are at the bounds of the encoding of one device, with the signs of such
      duels. Only the number of duels is honest.
    - *crowd*: the *loud* numbers times the largest of 64, 32, ..., 1 that is accepted. The number
      of duels is honest.
    - *random*: arbitrary elements of the field.

    Without secure sums, the server checks each upload by itself. With secure sums, it checks the
    sum. A refused upload, or one that spoils the sum, is left out of the round. The last row is of
    agents that choose at random.
    """
    cases = [
        Case(algorithm, secure, lie)
        for algorithm, secure, lie in itertools.product(LEARNING, (False, True), LIES)
        if secure or lie != "random"
    ]
    cases.append(Case("random", secure=False, lie="none"))
    outcomes = map_in_processes(_outcome_of, itertools.product(cases, range(seeds)))
    rows = []
    for place, case in enumerate(cases):
        regrets, factors = zip(*outcomes[place * seeds : (place + 1) * seeds], strict=True)
        each = np.concatenate(factors)
        rows.append({
            **case._asdict(),
            "regret": list(regrets),
            "exchanges": len(each),
            "refused": int((each == 0.0).sum()),
            "factor": float(np.median(each)) if len(each) else 0.0,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _outcome_of(job: tuple[Case, int]) -> Outcome:
    return run(*job)
