"""Uploads in secure sums: the algorithms learn the same from sums of integers."""

import math

import numpy as np
import pytest
from test_messages import make_broadcast, some_upload

from fldb_flower.algorithms import make_algorithm, run_rounds
from fldb_flower.bandit.prior import CommonPrior
from fldb_flower.environments import max_difference
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.agents import AgentGroup
from fldb_flower.federation.exchange import Broadcast, Federation, PlayRequest, statistics, total
from fldb_flower.federation.history import History
from fldb_flower.linalg.forms import Diagonal, Full, Sketch, make_form
from fldb_flower.secure import field
from fldb_flower.secure.encoding import Encoding
from fldb_flower.secure.sharing import Scheme
from fldb_flower.settings import from_nested
from fldb_flower.wire.secure_upload import blocks_of, numbers_of, upload_of


class SharedSums(Federation):
    """Agents whose uploads are summed as floats, or as pieces of packed sharing."""

    def __init__(self, settings, *, is_secure):
        super().__init__(History(settings.horizon))
        self.settings, self.form = settings, make_form(settings)
        self.agents = [AgentGroup(settings, range(i, i + 1)) for i in range(settings.num_agents)]
        self.is_secure, self.counted = is_secure, 0

    def collect(self, broadcast):
        uploads = [agent.answer(broadcast, self.counted) for agent in self.agents]
        plain = total(uploads)
        if not self.is_secure or not broadcast.learns:
            return plain
        blocks = blocks_of(
            broadcast, self.form, answers=self.settings.horizon,
            longest=max_difference(self.settings), ridge=self.settings.personal_ridge,
        )  # fmt: skip
        encoding, scheme = Encoding(blocks, len(uploads)), Scheme.of(len(uploads))
        vectors = [encoding.encode(numbers_of(upload, broadcast)) for upload in uploads]
        seeds = field.seeds(bytes(32), len(uploads))
        pieces = field.total(np.stack([*map(scheme.share, vectors, seeds)]))
        members = [*range(scheme.tolerated, scheme.committee)]
        opened = scheme.recover(pieces[members], members, encoding.size)
        decoded = upload_of(encoding.decode(opened), broadcast, self.form)
        assert decoded.num_duels == plain.num_duels
        return decoded._replace(outcomes=plain.outcomes)

    def mark_counted(self):
        self.counted = self.history.iteration


@pytest.mark.parametrize(
    "chosen",
    [
        {"algorithm": "fldb_personal"},
        {"algorithm": "fldb_ons"},
        {"algorithm": "fldb_ons", "matrix_form": "diagonal"},
        {"algorithm": "fldb_ogd"},
        {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 3, "gd_step_size": 0.01},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_the_same_arms_are_shown(chosen):
    sizes = {"num_agents": 11, "dimension": 3, "num_arms": 4, "horizon": 12, "tau": 4}
    settings = from_nested({**sizes, **chosen}, "a test")
    curves = []
    for is_secure in (False, True):
        federation = SharedSums(settings, is_secure=is_secure)
        theta = run_rounds(federation, make_algorithm(settings))
        curves.append((federation.history.cumulative_regret, theta))
    (plain, theta), (secure, other) = curves
    np.testing.assert_array_equal(secure, plain)
    np.testing.assert_allclose(other, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hessian", [False, True])
@pytest.mark.parametrize("loss", [False, True])
def test_round_trip(hessian, loss):
    upload = some_upload(hessian=hessian, loss=loss)
    broadcast = make_broadcast(hessian=hessian, loss=loss)
    numbers = numbers_of(upload, broadcast)
    back = upload_of(numbers, broadcast, Full(3))
    assert back.num_duels == upload.num_duels
    np.testing.assert_array_equal(back.information, upload.information)
    np.testing.assert_array_equal(numbers_of(back, broadcast), numbers)
    blocks = blocks_of(broadcast, Full(3), answers=10, longest=2.0)
    assert Encoding(blocks, 1).size == len(numbers)


@pytest.mark.parametrize("form", [Full(4), Diagonal(4)])
def test_extreme_duels_are_within_the_bounds(form):
    """Every number reaches its bound: n answers against an estimate along the same difference."""
    n, longest = 50, 3.0
    x = np.tile([longest, 0.0, 0.0, 0.0], (n, 1))
    for factor, name in ((1000.0, "the gradient"), (0.0, "the Hessian"), (0.7, "the loss")):
        theta = factor * x[0] / longest
        request = Broadcast(None, theta, hessian=True, loss=True)
        upload = statistics(request, x, np.zeros(n), x, form)
        blocks = blocks_of(request, form, answers=n, longest=longest)
        encoding = Encoding(blocks, 100)
        numbers = numbers_of(upload, request)
        encoding.encode(numbers)
        ends = np.cumsum([block.size for block in blocks])[:-1]
        largest = {
            block.name: np.abs(part).max() / block.bound
            for block, part in zip(blocks, np.split(numbers, ends), strict=True)
        }
        for reached in (name, "W_new", "the number of duels"):
            assert largest[reached] == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(DataError, match=r"^W_new\[0\] = 450.\d*: must be from -450"):
            encoding.encode(numbers * np.where(np.arange(len(numbers)) == 4, 1.001, 1.0))


def test_bounds_of_shares_by_hand():
    """v_0 / scale = 0.01 / (2 * 2): 1/v = 400, and r = 10 sqrt(d) / sqrt(lambda_0 scale) 400."""
    prior = CommonPrior(np.zeros((4, 4)), np.zeros(4), 0.1, 2.0)
    request = Broadcast(PlayRequest(1, 5, prior), None, shares=True, lowest_variance=0.01)
    blocks = blocks_of(request, Full(4), answers=30, longest=5.0, ridge=0.25, agents=3)
    bounds = {block.name: (block.size, block.bound) for block in blocks}
    assert bounds == {
        "the change of m": (4, pytest.approx(3 * 2 * 10 * 2 / 1 * 400, rel=1e-5)),
        "the change of M": (10, pytest.approx(3 * 400, rel=1e-5)),
        "the log losses": (11, pytest.approx(90, rel=1e-5)),
        "the squared length of differences": (1, pytest.approx(90 * 25, rel=1e-5)),
        "the change of members": (1, 3),
        "the number of duels": (1, 90),
    }


@pytest.mark.parametrize(
    ("form", "longest", "reason"),
    [
        (Full(3), math.inf, "^secure sums need max_difference, the largest length of a difference"),
        (Full(3), 0.0, "^secure sums need max_difference, the largest length of a difference"),
        (Sketch(9, 2), 1.0, "^secure sums need matrix_form=full or diagonal"),
    ],
)
def test_what_secure_sums_need(form, longest, reason):
    with pytest.raises(SettingsError, match=reason):
        blocks_of(make_broadcast(), form, answers=10, longest=longest)
