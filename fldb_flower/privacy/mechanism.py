"""The Gaussian mechanism: noise on the sum of the uploads of one exchange."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import default_rng

from fldb_flower.bandit.streams import keyed_generator
from fldb_flower.errors import PrivacyError
from fldb_flower.federation.exchange import Broadcast, Noise, Upload
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.linalg.forms import Form, Full, form_of
from fldb_flower.privacy.plan import ReleasePlan
from fldb_flower.privacy.sensitivities import asked_again, release_of
from fldb_flower.settings import Settings

_MATRICES = ("information", "hessian", "precision")
_PARTS = ("gradient", "information", "hessian", "loss", "shift", "precision", "losses")
"""Parts of an upload, or of its shares, in the order in which their noise is drawn."""


class GaussianMechanism:
    """Adds Gaussian noise to the sum of the uploads of each exchange.

    The noise multiplier is calibrated once, to all exchanges of the schedule. The noise of an
    exchange is drawn from a stream keyed by (seed, "privacy", number of the exchange), so results
    do not depend on the engine or the number of nodes. **Who knows the seed knows the noise**: in
    a simulation, the noise shows what privacy costs, and protects nobody.

    With devices and without secure sums, the generator is seeded by the operating system. The
    server receives the uploads of single devices without noise, so **it is trusted with them**: the
    noise protects against those who receive the estimates. Its floats are not made for attackers
    who see all their bits; devices in secure sums draw integers (:mod:`~.discrete`).

    Parameters
    ----------
    settings : Settings
        With ``privacy.epsilon``.

    Attributes
    ----------
    plan : ReleasePlan
        The noise multiplier, and the budget.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.federation.exchange import Broadcast, PlayRequest, Upload
    >>> from fldb_flower.privacy.mechanism import GaussianMechanism
    >>> from fldb_flower.settings import from_keywords
    >>> settings = from_keywords(
    ...     {"algorithm": "fldb_ogd", "first_round": "step", "privacy_epsilon": 3, "dimension": 2,
    ...      "privacy_unit": "answer"}, "a script",
    ... )
    >>> mechanism = GaussianMechanism(settings)
    >>> request = Broadcast(PlayRequest(1, 1), np.zeros(2))
    >>> upload = Upload(100, np.array([-20.0, 5.0]), 100 * np.eye(2), None, None, ())
    >>> noisy = mechanism.add(upload, request, number=1)
    >>> round(noisy.noise.gradient, 2), noisy.num_duels
    (2.67, 100)
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.plan = ReleasePlan(settings)
        self._covered = 0  # the last iteration whose duels were released

    def require(self, broadcast: Broadcast, number: int) -> None:
        """Check that exchange ``number`` may release the upload that a broadcast requests.

        Raises
        ------
        PrivacyError
            It would exceed the budget, its sensitivity is not known, or it is over duels that an
            earlier exchange has released.
        """
        release_of(broadcast, self._settings)
        assert broadcast.play is not None
        if broadcast.play.first <= self._covered:
            raise asked_again(self._settings)
        self.plan.require(number)

    def deviations(self, broadcast: Broadcast) -> Noise:
        """Return the standard deviations of the noise in the sum that a broadcast requests."""
        return release_of(broadcast, self._settings).noise().scaled(self.plan.multiplier)

    def add(self, upload: Upload, broadcast: Broadcast, number: int) -> Upload:
        """Return the upload of exchange ``number`` with noise.

        Raises
        ------
        PrivacyError
            :meth:`require` does, or a part has no noise.
        """
        self.require(broadcast, number)
        noise, play = self.deviations(broadcast), broadcast.play
        assert play is not None
        self._covered = play.last
        seed = self._settings.seed
        is_simulated = self._settings.mode == "simulation"
        # A known seed protects nobody.
        generator = keyed_generator(seed, "privacy", number) if is_simulated else default_rng()
        return with_noise(upload, noise, generator)


def noise_of(settings: Settings) -> GaussianMechanism | None:
    """Return the mechanism of the settings; None without privacy.

    Raises
    ------
    SettingsError
        dp-accounting is not installed (the privacy extra).
    """
    return GaussianMechanism(settings) if settings.is_private else None


def with_noise(upload: Upload, noise: Noise, generator: np.random.Generator) -> Upload:
    """Return an upload with independent Gaussian noise of the given standard deviations.

    Raises
    ------
    PrivacyError
        A part would have no noise.
    """
    form = form_of(upload.information)
    holder = upload if upload.shares is None else upload.shares
    noisy = {}
    for part in _PARTS:
        if (exact := getattr(holder, part, None)) is None:
            continue
        deviation = getattr(noise, part)
        if not deviation > 0.0:
            raise PrivacyError(f"the sensitivity of {part} is not known, so it is not released")
        is_matrix = part in _MATRICES
        drawn = (
            form_noise(form, generator) if is_matrix else generator.standard_normal(np.shape(exact))
        )
        noisy[part] = exact + deviation * drawn
    changed = holder._replace(**noisy)
    if isinstance(changed, Upload):
        return changed._replace(noise=noise)
    return upload._replace(shares=changed, noise=noise)


def form_noise(form: Form, generator: np.random.Generator) -> FloatArray:
    """Return standard normal noise in the shape of a form: full or diagonal."""
    if isinstance(form, Full):
        return symmetric_noise(form.dimension, generator)
    return generator.standard_normal(form.shape)


def symmetric_noise(dimension: int, generator: np.random.Generator) -> FloatArray:
    r"""Return a symmetric matrix of noise, (d, d).

    Its coordinates ``M_jj`` and ``sqrt(2) M_jk``, j < k, are independent and standard normal.
    Their Euclidean norm is the Frobenius norm of the matrix, so a sensitivity in that norm
    applies. The distribution does not change if the basis is rotated.

    Examples
    --------
    >>> import numpy as np
    >>> from fldb_flower.privacy.mechanism import symmetric_noise
    >>> noise = symmetric_noise(3, np.random.default_rng(0))
    >>> bool((noise == noise.T).all())
    True
    """
    form = Full(dimension)
    noise = form.unpack(generator.standard_normal(form.size))
    diagonal = np.diagonal(noise).copy()
    noise *= math.sqrt(0.5)
    np.fill_diagonal(noise, diagonal)
    return noise
