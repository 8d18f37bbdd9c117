"""Modules that one exchange passes: `python docs/measure/trace.py [--list]`.

A module counts if one of its functions is called between the call of `Federation.exchange` and its
return, on the server and, because all of them are in this process, on agents, devices and helper.
"""

import logging
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(each) for each in (ROOT, TESTS, TESTS / "clients", TESTS / "strategies")]

from fldb_flower.federation.exchange import Federation  # noqa: E402

PACKAGES = ("fldb_flower", "strategies", "clients", "simulations")
ROOTS = tuple(str(ROOT / name) for name in PACKAGES)


def traced(play: Callable[[], None]) -> set[str]:
    """Return the files of the last exchange of `play`."""
    exchange, passed = Federation.exchange, set[str]()

    def watched(self: Federation, *arguments: Any) -> Any:
        passed.clear()

        def note(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_name != "<module>":
                passed.add(code.co_filename)

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return exchange(self, *arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    Federation.exchange = watched  # type: ignore[assignment, method-assign]
    try:
        play()
    finally:
        Federation.exchange = exchange  # type: ignore[method-assign]
    return {str(Path(name).relative_to(ROOT)) for name in passed if name.startswith(ROOTS)}


def simulated(engine: str) -> None:
    """Play FLDB-ONS with simulated agents."""
    import fldb_flower as fldb  # noqa: PLC0415

    fldb.run(algorithm="fldb_ons", engine=engine, num_agents=4, horizon=12, tau=4)


def devices() -> None:
    """Play two rounds with three devices."""
    from test_devices import Federation as Devices  # type: ignore[import-not-found]  # noqa: PLC0415

    from strategies import device_rounds  # noqa: PLC0415

    device_rounds.RETRY_SECONDS = 0.0
    with tempfile.TemporaryDirectory() as folder:
        federation = Devices(Path(folder))
        for _ in range(2):
            for device in range(3):
                federation.answer(device, 4)
            federation.serve()


def secure() -> None:
    """Play two rounds with three devices, a helper and secure sums."""
    from secure_federation import SecureFederation  # type: ignore[import-not-found]  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, SecureFederation(Path(folder)) as federation:
        for _ in range(2):
            federation.answer(count=8)
            with federation.serving() as server:
                federation.round(server)


def main() -> None:
    """Print the number of modules of each kind of exchange."""
    logging.disable()
    kinds: dict[str, Callable[[], None]] = {
        "vectorized": lambda: simulated("vectorized"),
        "Flower": lambda: simulated("inprocess"),
        "devices": devices,
        "secure": secure,
    }
    for kind, play in kinds.items():
        names = sorted(traced(play))
        print(f"{kind}: {len(names)} modules")
        if "--list" in sys.argv:
            print(*(f"  {name}" for name in names), sep="\n")


if __name__ == "__main__":
    main()
