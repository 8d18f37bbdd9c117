"""Results that a change of the code's structure must not change.

`python docs/measure/references.py [--check] [--quick]` writes, or compares with, `references.json`:
for each case and ten seeds the final regret and a hash of each bit of the regret curve, the
estimate, the exchanges and the bytes. The last bits depend on the processor and the libraries, so
the hashes are compared on one machine. `--quick` takes one seed. Studies of real people and
MovieLens are included where FLDB_DUELS and FLDB_ML100K name their folders.
"""

import hashlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import fldb_flower as fldb  # noqa: E402

STORED = Path(__file__).with_name("references.json")
SEEDS = 10
SMALL = {"num_agents": 8, "horizon": 30, "num_arms": 6, "tau": 3}
ALGORITHMS = ("fldb_ogd", "fldb_gd", "fldb_ons", "fldb_personal", "alone", "ldb", "random")
LEARNING = ALGORITHMS[:4]
RULES = ("ucb", "maxinp", "colstim", "maxpairucb", "thompson")


def cases() -> Iterator[dict[str, Any]]:
    """Yield the settings of each case."""
    for algorithm in ALGORITHMS:
        for sigma in (0.0, 0.5):
            yield {"algorithm": algorithm, "environment_sigma": sigma}
        for rule in RULES[1:]:
            yield {"algorithm": algorithm, "selection": rule, "environment_sigma": 0.3}
        yield {"algorithm": algorithm, "schedule": "geometric", "tau": 5}
        yield {"algorithm": algorithm, "engine": "inprocess", "engine_num_nodes": 3}
        yield {"algorithm": algorithm, "engine_workers": 2}
        if folder := os.environ.get("FLDB_ML100K"):
            for users in ("drawn", "persistent"):
                path: dict[str, Any] = {"environment_path": folder, "environment_users": users}
                yield {"algorithm": algorithm, "environment": "movielens", **path}
        if folder := os.environ.get("FLDB_DUELS"):
            for study in sorted(Path(folder).iterdir()):
                if not (study / "duels.csv").exists():
                    continue
                path = {"environment_path": str(study), "environment_max_people": 8}
                yield {
                    "algorithm": algorithm, "environment": "duels", "num_agents": "auto",
                    "horizon": 15, "dimension": "auto", "num_arms": 2, **path,
                }  # fmt: skip
    for algorithm in LEARNING:
        for engine in ({}, {"engine": "inprocess", "engine_num_nodes": 2}):
            if algorithm in {"fldb_ogd", "fldb_ons"}:
                yield {"algorithm": algorithm, "matrix_form": "diagonal", **engine}
            private = {"privacy_epsilon": 3.0, "privacy_unit": "person"}
            if algorithm != "fldb_gd":
                yield {"algorithm": algorithm, **private, **engine}
                yield {"algorithm": algorithm, **private, "privacy_parties": 2, **engine}
    yield {"algorithm": "fldb_ogd", "projection_center": "current", "step_index": "round"}
    yield {"algorithm": "fldb_ogd", "first_round": "step"}
    yield {"algorithm": "fldb_gd", "solver": "gd", "gd_steps": 3}
    yield {"algorithm": "fldb_gd", "solver": "lbfgs"}
    yield {"algorithm": "fldb_ons", "backend": "cpu"}
    yield {"algorithm": "fldb_ons", "backend": "cpu", "rng": "torch"}
    yield {"algorithm": "fldb_personal", "refit_ratio": 1.3}
    yield {"algorithm": "fldb_personal", "personal_variance": 0.2}
    yield {"algorithm": "ldb", "refit_ratio": 1.3}
    robust = {"robust": "trimmed", "engine": "inprocess", "engine_num_nodes": 4}
    yield {"algorithm": "fldb_ogd", **robust}


def shown(case: dict[str, Any]) -> str:
    """Return the name of a case, without the folders of this machine."""
    return " ".join(
        f"{name}={Path(value).name if name.endswith('path') else value}"
        for name, value in case.items()
    )


def outcome(case: dict[str, Any], seed: int) -> tuple[float, str]:
    """Return the final regret and the hash of a run."""
    result = fldb.run(SMALL | case, seed=seed)
    digest = hashlib.sha256()
    regret = result.regret
    for name in ("iteration", "cumulative_regret", "exchanges"):
        digest.update(np.ascontiguousarray(regret[name].to_numpy(float)).tobytes())
    if result.theta is not None:
        digest.update(np.ascontiguousarray(result.theta, dtype=float).tobytes())
    names = ("exchanges", "rounds", "uploaded_bytes", "downloaded_bytes")
    digest.update(json.dumps([result.summary.get(name) for name in names]).encode())
    return float(regret["cumulative_regret"].iloc[-1]), digest.hexdigest()[:16]


def main() -> None:
    """Write the references, or compare with them; the exit status is 1 if one differs."""
    logging.disable()
    warnings.simplefilter("ignore")
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    found: dict[str, Any] = {}
    differing = 0
    for case in cases():
        name = shown(case)
        seeds = range(1 if "--quick" in sys.argv else SEEDS)
        outcomes = [outcome(case, seed) for seed in seeds]
        found[name] = {
            "regret": [float(f"{regret:.12g}") for regret, _ in outcomes],
            "hash": [digest for _, digest in outcomes],
        }
        if "--check" in sys.argv and name in stored:
            before = stored[name]
            for place in seeds:
                if before["hash"][place] == found[name]["hash"][place]:
                    continue
                near = np.isclose(
                    before["regret"][place], found[name]["regret"][place], rtol=1e-9, atol=0.0
                )
                differing += 1
                print(f"{name} seed={place}: {'only bits or bytes differ' if near else 'DIFFERS'}")
        elif "--check" in sys.argv:
            print(f"{name}: no reference")
    if "--check" in sys.argv:
        print(f"{len(found)} cases, {differing} runs differ")
        raise SystemExit(differing > 0)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    STORED.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
