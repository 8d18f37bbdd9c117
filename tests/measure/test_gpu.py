"""The comparison of a GPU with NumPy, on the CPU of PyTorch."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import gpu

torch = pytest.importorskip("torch", reason="needs the torch extra")
SMALL = ["--device", "cpu", "--clients", "2", "--agents", "3", "4", "--dimensions", "2"]


ENGINES = (
    "inprocess",
    pytest.param("flower", marks=[pytest.mark.exhaustive, pytest.mark.xdist_group("flower")]),
)


@pytest.mark.parametrize("engine", ENGINES)
def test_flower_clients_equal_numpy_and_are_timed(engine, monkeypatch, capsys):
    """Flower's messages in this process, and Flower's own engine."""
    run = gpu.fldb.run
    other = {"engine": engine}
    monkeypatch.setattr(gpu.fldb, "run", lambda own: run(own | other if "engine" in own else own))
    gpu.main([*SMALL, "--horizon", "6", "--algorithm", "fldb_ons"])
    line, *table = capsys.readouterr().out.splitlines()
    assert line.startswith("fldb_ons, 2 Flower clients, backend=cpu, theta differs from ")
    assert table[0].split("  ")[-1].strip() == "cpu, rng=torch, s"
    assert [row.split()[:2] for row in table[1:]] == [["3", "2"], ["4", "2"]]
    assert all(float(number) > 0 for row in table[1:] for number in row.split())


@pytest.fixture
def asked(monkeypatch):
    """Replace runs by a curve with a relative error on the GPU; return their settings."""
    asked = []

    def run(values):
        asked.append(values)
        curve = np.array([1.0, 2.0, 3.0])
        curve[1] += 3 * gpu.errors if values.get("backend", "numpy") != "numpy" else 0.0
        return SimpleNamespace(
            theta=np.array([0.5, -1.0]), regret=pd.DataFrame({"cumulative_regret": curve})
        )

    monkeypatch.setattr(gpu.fldb, "run", run)
    monkeypatch.setattr(gpu, "arrays_on", lambda device: None)
    return asked


def test_each_client_has_a_tenth_of_the_gpu(asked, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "errors", 0.9e-9, raising=False)
    gpu.main(["--agents", "3", "--dimensions", "2", "--algorithm", "fldb_ons"])
    assert "regret differs from backend=numpy by 9.0e-10" in capsys.readouterr().out
    first, plain = asked[:2]
    assert plain == {"algorithm": "fldb_ons", "num_agents": 100, "horizon": 100, "tau": 5}
    engine = {"engine": "flower", "engine_num_nodes": 100, "engine_num_gpus": 0.1}
    assert first == {**plain, **engine, "backend": "cuda"}


def test_a_difference_ends_the_command(asked, monkeypatch):
    monkeypatch.setattr(gpu, "errors", 1.1e-9, raising=False)
    with pytest.raises(SystemExit, match=r"error: fldb_ons, .*regret differs .* by 1\.1e-09 of"):
        gpu.main(["--algorithm", "fldb_ons"])


def test_without_a_gpu_the_command_ends_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        SystemExit, match=r"\Aerror: backend=cuda: PyTorch .* finds no GPU [^\n]*\Z"
    ):
        gpu.main([])
    assert capsys.readouterr() == ("", "")
