"""The claims of docs/security.md: what uploads reveal, and malformed messages."""

import contextlib
import io
import itertools
import math
import pickle
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import device_request
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clients.device import DeviceAgent, Limits
from clients.learning import PersonalLearner
from clients.store import DuelStore, Evidence
from fldb_flower.bandit import preference
from fldb_flower.bandit.estimate import CommonPrior, Estimate
from fldb_flower.errors import DataError
from fldb_flower.federation.exchange import Broadcast, PlayRequest
from fldb_flower.federation.history import History
from fldb_flower.linalg.linear import Form
from fldb_flower.settings import from_flat, from_nested
from fldb_flower.wire import UploadError, decode_upload, pack_vector, unpack_vector
from strategies.devices import DeviceChannel
from strategies.simulated import SimulatedChannel

property_test = settings(deadline=None, derandomize=True, max_examples=200)


# --- what uploads reveal -------------------------------------------------------------------


class QueriedDevice:
    """A device with answers in its store; a call sends it an arbitrary broadcast."""

    def __init__(self, folder, x, y, **limits):
        self.store = DuelStore(folder / "duels.db")
        self.add(x, y)
        self.dimension = x.shape[1]
        chosen = {"mode": "devices", "algorithm": "fldb_ons", "dimension": self.dimension}
        self.agent = DeviceAgent(self.store, from_flat(chosen, "a test"), Limits(**limits))
        self.exchanges = 0

    def add(self, x, y):
        proposals = [self.store.propose(each, math.nan, expire_after=60.0) for each in x]
        self.store.record((each.id, answer) for each, answer in zip(proposals, y, strict=True))

    def __call__(self, theta, upto=-1, counted=0):
        broadcast = Broadcast(None, np.asarray(theta, dtype=float), hessian=True)
        device = self.store.device_id
        vector, config = device_request(broadcast, device, counted=counted, upto=upto)
        (answer,), duels, _ = self.agent.fit([vector], config)
        self.exchanges += 1
        return decode_upload(answer, duels, broadcast, Form(self.dimension))


def some_duels(n, d, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(0, 2, n).astype(float)


def preferred(x, y):
    """Preferred minus other arm, sorted: the complete content of the duels."""
    rows = x * (2 * y - 1)[:, None]
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("n", "d"), [(1, 4), (5, 5), (3, 5), (8, 8)])
def test_with_a_hessian_up_to_d_duels_can_be_read_from_one_upload(tmp_path, n, d, seed):
    """The reason for the default of min-duels-per-upload, 3 d.

    Let W = X^T X and U = X W^(-1/2), with orthonormal rows. W^(-1/2) H W^(-1/2) = U^T diag(c) U, so
    the rows of U are eigenvectors up to their signs, and X = U W^(1/2).
    """
    x, y = some_duels(n, d, seed)
    theta = 0.5 * np.random.default_rng(100 + seed).standard_normal(d)
    upload = QueriedDevice(tmp_path, x, y, min_duels=n)(theta)
    assert upload.num_duels == n
    values, vectors = np.linalg.eigh(upload.information)
    values, vectors = values[d - n :], vectors[:, d - n :]  # the range of W
    root = vectors * np.sqrt(values)
    inverse = vectors / np.sqrt(values)
    _, u = np.linalg.eigh(inverse.T @ upload.hessian @ inverse)
    phi = u.T @ root.T
    residuals = np.linalg.lstsq(phi.T, upload.gradient, rcond=None)[0]
    np.testing.assert_allclose(
        preferred(phi, (residuals < 0).astype(float)), preferred(x, y), atol=1e-6
    )


def statistics(theta, x, y):
    gradient, hessian = preference.derivatives(theta, x, y)
    upper = np.triu_indices(x.shape[1])
    return np.concatenate([gradient, preference.gram(x)[upper], hessian[upper]])


def test_five_duels_in_three_dimensions_are_not_unique_without_a_hessian():
    """FLDB-OGD: rotating X about the plane of logits and residuals leaves the upload unchanged."""
    (x, y), theta = some_duels(5, 3), np.array([0.4, -0.2, 0.7])
    fixed, _ = np.linalg.qr(np.stack([x @ theta, 1 / (1 + np.exp(-x @ theta)) - y], axis=1))
    rest = np.linalg.svd(fixed.T)[2][2:].T  # the other three of five directions
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))
    other = (fixed @ fixed.T + rest @ turn @ rest.T) @ x
    sent = 3 + 6
    np.testing.assert_allclose(
        statistics(theta, other, y)[:sent], statistics(theta, x, y)[:sent], atol=1e-12
    )
    assert np.abs(preferred(other, y) - preferred(x, y)).max() > 0.1


def test_six_duels_in_three_dimensions_are_not_unique_with_one():
    """18 unknowns and 15 equations: follow the solution set, starting at the true duels."""
    (x, y), theta = some_duels(6, 3), np.array([0.4, -0.2, 0.7])
    sent = statistics(theta, x, y)

    def equations(flat):
        return statistics(theta, flat.reshape(6, 3), y) - sent

    def slope(flat, step=1e-6):
        columns = [equations(flat + step * e) - equations(flat - step * e) for e in np.eye(18)]
        return np.stack(columns, axis=1) / (2 * step)

    other = x.ravel()
    for _ in range(40):
        other = other + 0.02 * np.linalg.svd(slope(other))[2][-1]
        for _ in range(4):
            other = other - np.linalg.lstsq(slope(other), equations(other), rcond=None)[0]
    np.testing.assert_allclose(equations(other), 0.0, atol=1e-10)
    assert np.abs(preferred(other.reshape(6, 3), y) - preferred(x, y)).max() > 0.05


def test_log_losses_of_a_learned_shape_determine_nine_duels():
    """FLDB-Personal, d=3: a search that starts near the duels finds them from one upload.

    27 unknowns, the preferred minus the other arm of each duel, and 65 equations.
    """
    rng, d, n = np.random.default_rng(2), 3, 9
    chosen = from_flat({"mode": "devices", "algorithm": "fldb_personal", "dimension": d}, "a test")
    others, root = rng.standard_normal((40, d)), rng.standard_normal((d, d))
    precision, shape = others.T @ others, root @ root.T
    shift, shape = precision @ rng.standard_normal(d) / 2, d / np.trace(shape) * shape
    prior = CommonPrior(precision, shift, 0.1, 1.0, shape, 0.3)

    def evidence(x):
        return Evidence(np.arange(len(x)), x, np.ones(len(x)), np.full(len(x), math.nan))

    def sent(flat):
        x = flat.reshape(n, d)
        share = PersonalLearner(chosen, prior).share(evidence(x[:0]), evidence(x))
        upper = np.triu_indices(d)
        return np.concatenate([share.shift, share.precision[upper], share.losses, [share.squares]])

    def length(flat):
        return np.linalg.norm(sent(flat) - upload)

    x = rng.standard_normal(n * d)
    upload, found = sent(x), x + 0.02 * rng.standard_normal(n * d)
    for _ in range(12):  # Levenberg and Marquardt
        columns = [(sent(found + e) - sent(found - e)) / 2e-5 for e in 1e-5 * np.eye(n * d)]
        damped = np.vstack([np.stack(columns, axis=1), 1e-3 * length(found) * np.eye(n * d)])
        rest = np.concatenate([sent(found) - upload, np.zeros(n * d)])
        step = np.linalg.lstsq(damped, rest, rcond=None)[0]
        while length(found - step) > length(found) and np.abs(step).max() > 1e-9:
            step = step / 2
        found = found - step
    np.testing.assert_allclose(found, x, atol=1e-6)


def test_gradients_at_many_points_reveal_every_duel(tmp_path):
    """Far from the origin, a gradient reveals on which side of each duel's plane theta lies.

    On a line of such points the gradient jumps by phi where phi . theta changes its sign. The
    attack respects `min-duels-per-upload` and works for more than d duels; `max-questions`
    prevents it.
    """
    x, y = some_duels(7, 3, seed=3)
    device = QueriedDevice(tmp_path, x, y, min_duels=7, max_questions=150)
    origin, direction = np.random.default_rng(5).standard_normal((2, 3))

    def gradient(s):
        return device(1e12 * (origin + s * direction)).gradient

    jumps = []

    def search(left, right, before, after):
        if np.abs(after - before).max() < 1e-9:
            return
        if right - left < 1e-3:
            jumps.append(after - before)
            return
        middle = (left + right) / 2
        between = gradient(middle)
        search(left, middle, before, between)
        search(middle, right, between, after)

    search(-50.0, 50.0, gradient(-50.0), gradient(50.0))
    found = np.array(jumps)
    assert found.shape == (7, 3)
    assert device.exchanges < 150
    upload = device(np.zeros(3))  # now the answers: 2^7 candidates
    guesses = (np.array(guess) for guess in itertools.product([0.0, 1.0], repeat=7))
    best = min(guesses, key=lambda g: np.abs((0.5 - g) @ found - upload.gradient).max())
    np.testing.assert_allclose(preferred(found, best), preferred(x, y), atol=1e-6)


def test_a_server_gets_gradients_at_few_points_only(tmp_path):
    """A device replies again at a known point, but not at a fourth one."""
    x, y = some_duels(9, 3)
    device = QueriedDevice(tmp_path, x, y, min_duels=9, max_questions=3)
    points = np.random.default_rng(1).standard_normal((4, 3))
    first = [device(point) for point in points[:3]]
    for point, before in zip(points[:3], first, strict=True):
        np.testing.assert_array_equal(device(point).gradient, before.gradient)
    with pytest.raises(DataError, match=r"at 3 different estimates.*max-questions"):
        device(points[3])
    np.testing.assert_array_equal(device(points[0]).gradient, first[0].gradient)


def test_questions_are_counted_for_each_answer(tmp_path):
    """An answer is in uploads at three points at most, wherever the server cuts the uploads."""
    x, y = some_duels(4, 3)
    device = QueriedDevice(tmp_path, x, y, min_duels=4, max_questions=3)
    points = np.random.default_rng(1).standard_normal((9, 3))
    device(points[0], upto=device(points[0]).num_duels)
    device(points[1])
    device.add(*some_duels(4, 3, seed=1))
    assert device(points[2]).num_duels == 8  # the third point for the first four answers
    with pytest.raises(DataError, match="at 3 different"):
        device(points[3])
    with pytest.raises(DataError, match="at 3 different"):
        device(points[3], upto=4)
    for point in points[4:6]:
        assert device(point, counted=4).num_duels == 4
    with pytest.raises(DataError, match="at 3 different"):
        device(points[6], counted=4)


def test_uploads_and_their_differences_cover_enough_answers(tmp_path):
    """Cuts are 5 answers apart, whatever `counted` and `upto` a server sends."""
    x, y = some_duels(4, 3)
    device = QueriedDevice(tmp_path, x, y, min_duels=5)
    assert device(np.zeros(3)).num_duels == 0
    for upto in (1, 2, 3, 4):
        with pytest.raises(Exception, match="no upload ever ended at answer"):
            device(np.zeros(3), upto=upto)


# --- malformed messages --------------------------------------------------------------------


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def zipped(array):
    """Return an archive, which NumPy's reader would open as well."""
    buffer = io.BytesIO()
    np.savez(buffer, array)
    return buffer.getvalue()


VECTOR = npy(np.zeros(3))
HOSTILE = {
    "more than there is": VECTOR.replace(b"(3,)", b"(9,)"),
    "less than there is": VECTOR.replace(b"(3,)", b"(2,)"),
    "too long a length": VECTOR.replace(b"(3,), }" + b" " * 20, b"(1000000000000000000000000,)"),
    "negative": VECTOR.replace(b"(3,), } ", b"(-3,), }"),
    "code": VECTOR.replace(b"(3,), }" + b" " * 30, b"(__import__('os').abort(),), }" + b" " * 7),
    "Fortran order": npy(np.asfortranarray(np.ones((2, 3)))),
    "objects": npy(np.array([{}, 1], dtype=object), allow_pickle=True),
    "structured": npy(np.zeros(3, dtype=[("a", "<f8"), ("b", "<i4")])),
    "texts": npy(np.array(["a", "bc"])),
    "void": npy(np.zeros(3, "V8")),
    "single": npy(np.zeros(4, np.float32)),
    "matrix": npy(np.zeros((3, 1))),
    "version 2": VECTOR.replace(b"NUMPY\1", b"NUMPY\2"),
    "header longer than the file": VECTOR[:8] + b"\xff\xff" + VECTOR[10:],
    "twice": VECTOR * 2,
    "pickle": pickle.dumps(np.zeros(3)),
    "empty": b"",
    "text": b"no array at all",
    "archive": zipped(np.zeros(3)),
    "7 bytes more": VECTOR + b"\0" * 7,
}


def record_of(data, shape=(3,)):
    return ArrayRecord({"0": Array("float64", shape, "numpy.ndarray", data)})


def peak_of(function, *arguments):
    tracemalloc.start()
    try:
        function(*arguments)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def read(record, max_mb=math.inf):
    """Read the record; return None if it is refused with a one-line error."""
    try:
        return unpack_vector(record, max_mb)
    except ValueError as error:
        refusal = error
    assert type(refusal) is ValueError
    assert "\n" not in str(refusal)
    assert len(str(refusal)) < 300
    return None


def test_a_hostile_array_is_refused_in_one_line(monkeypatch):
    for name in ("loads", "load"):
        monkeypatch.setattr(pickle, name, lambda *_: pytest.fail("unpickled"))
    for content in HOSTILE.values():
        assert content != VECTOR
        assert read(record_of(content)) is None
        assert peak_of(read, record_of(content)) < 2 * len(content) + 2**16


@property_test
@given(
    kind=st.sampled_from(["<f8", "<f4", ">i2", "|b1", "<c16"]),
    shape=st.lists(st.integers(0, 4), max_size=3),
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 40),
)
def test_a_changed_record_is_refused_or_read_as_by_numpy(kind, shape, changes, cut):
    """Vectors of float64 are read, as by NumPy's reader; nothing else is."""
    data = bytearray(npy(np.arange(math.prod(shape)).reshape(shape).astype(kind)))
    for place, byte in changes:
        if place < len(data):
            data[place] = byte
    whole = bytes(data[: len(data) - cut])
    found = read(record_of(whole))
    assert peak_of(read, record_of(whole)) < 2 * len(whole) + 2**16
    if not changes and not cut:
        assert (found is not None) == (kind == "<f8" and len(shape) == 1)
    if found is not None:
        expected = np.load(io.BytesIO(whole), allow_pickle=False)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


def test_reading_does_not_copy_and_the_size_is_limited():
    record = pack_vector(np.zeros(2**17))  # 1 MiB and a header
    assert peak_of(unpack_vector, record) < 2**16
    assert not unpack_vector(record).flags.writeable
    assert read(record, 1.0) is None
    with pytest.raises(ValueError, match=r"1 MiB exceed max-message-mb=0\.5"):
        unpack_vector(record, 0.5)
    assert read(record, 1.001).size == 2**17


def test_a_record_without_exactly_one_array_is_refused():
    two, metrics = ArrayRecord([np.zeros(2), np.zeros(2)]), MetricRecord({"0": 1.0})
    for record in (ArrayRecord({}), two, ConfigRecord({"0": "text"}), metrics, None, b"bytes"):
        assert read(record) is None


def both_kinds():
    simulation = from_nested({"num_agents": 4, "dimension": 2, "horizon": 6}, "a test")
    nodes = SimulatedChannel(simulation, History(6))
    chosen = {"mode": "devices", "algorithm": "fldb_ons", "dimension": 2}
    devices = DeviceChannel(from_flat(chosen, "a test"))
    devices.restore({"counted": {}, "duels": 0, "nodes": {"7": "0" * 32}})
    play = PlayRequest(1, 1, Estimate(np.zeros(2), np.eye(2)))
    nodes.broadcast = devices.broadcast = Broadcast(play, np.zeros(2), hessian=True)
    return nodes, devices


json_values = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)
config_values = (
    json_values
    | st.lists(st.integers(-9, 9) | st.floats(), max_size=9)
    | st.lists(st.text(max_size=3), max_size=9)
)


def test_an_upload_with_too_many_duels_is_refused():
    """Broadcasts contain the count as an integer of at most 64 bits."""
    _, devices = both_kinds()
    for count in (2**53 + 1, 2**54, 2**63 - 1):
        config = ConfigRecord({"header": [count, 0, count, 0, 0, 0, 0], "device": "0" * 32})
        content = RecordDict({"arrays": pack_vector(np.zeros(8)), "config": config})
        with pytest.raises(UploadError, match=r"is not a count from 0 to 2\^53"):
            devices.check(7, SimpleNamespace(content=content))


@property_test
@given(
    arrays=st.sampled_from(["vector", "numbers", "none", "hostile"]),
    config=st.dictionaries(
        st.sampled_from(["header", "outcomes", "exchange", "device", "x"]), config_values
    ),
    size=st.sampled_from([0, 5, 8]),
)
@example("vector", {"header": ["1", "0", "1", "4", "1"], "outcomes": [0.0], "exchange": 0}, 5)
@example("vector", {"header": [4, 0, 1, 4, 1], "outcomes": ["a"], "exchange": 0}, 5)
@example("vector", {"header": [4, 0, 1, 4, 1], "outcomes": 0.0, "exchange": 0}, 5)
@example("vector", {"header": [4, 0, 1, 4, 1], "outcomes": [0.0] * 10**6, "exchange": 0}, 5)
@example("vector", {"header": [1] * 10**6, "device": "0" * 32}, 5)
@example("numbers", {"header": [0] * 5, "device": "0" * 32}, 8)
@example("vector", {"header": 5, "device": ["0" * 32]}, 5)
def test_any_reply_is_an_upload_or_an_upload_error(arrays, config, size):
    records = {
        "vector": pack_vector(np.zeros(size)), "numbers": MetricRecord({"0": 1.0}),
        "hostile": record_of(HOSTILE["code"]),
    }  # fmt: skip
    content = {"arrays": records[arrays]} if arrays in records else {}
    with contextlib.suppress(TypeError, ValueError):  # some values cannot be sent
        content["config"] = ConfigRecord(config)
    reply = SimpleNamespace(content=RecordDict(content))
    for nodes in both_kinds():
        with contextlib.suppress(UploadError):
            nodes.check(7, reply)
