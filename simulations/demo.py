"""`fldb demo`: a federation of devices on this machine, with simulated users.

Starts a SuperLink, SuperNodes and preference services as on real devices (TLS, keys). Simulated
users answer duels between drinks. The steps of the start, the exchanges of the first round, and
each round are printed. One device is yours: open its page and answer duels too. Ctrl-C stops
everything.

With ``--secure``, the server obtains only noisy sums, with the help of one more process, the
helper. Noise that protects people needs hundreds of devices, so the demo uses a large epsilon.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    from fldb_flower.system import startup

    startup.begin()

import argparse
import contextlib
import csv
import math
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fldb_flower.errors import FederationError
from fldb_flower.linalg.arrays import FloatArray
from fldb_flower.system.commands import Parser, bounded, ending_in_one_line, program
from fldb_flower.system.startup import SERVICE_EXTRA, require
from simulations.local_federation import Device, LocalFederation, Secure
from simulations.local_process import LocalProcess

FEATURES = ("hot", "sweet", "bitter", "sour", "creamy", "fizzy")
DRINKS = {  # each feature from 0 to 9
    "Espresso, short and black": "918010",
    "Filter coffee with nothing in it": "906100",
    "Latte with a lot of steamed milk": "843070",
    "Cappuccino with cocoa on the foam": "844060",
    "Iced coffee with vanilla ice": "065080",
    "Black tea with a slice of lemon": "915400",
    "Green tea, a little too strong": "907100",
    "Chai with milk, honey and cardamom": "873060",
    "Mint tea with four lumps of sugar": "991000",
    "Rooibos with vanilla": "952020",
    "Hot chocolate with whipped cream": "992090",
    "Dark hot chocolate with chili": "846040",
    "Ginger infusion with lemon and honey": "964600",
    "Mulled apple juice with cinnamon": "871400",
    "Warm milk with honey": "770080",
    "Cold milk": "020070",
    "Mango lassi": "070380",
    "Buttermilk, chilled": "010660",
    "Banana shake": "080070",
    "Oat milk with dates": "060050",
    "Still water": "000000",
    "Sparkling water": "001109",
    "Lemonade, home-made and sharp": "050805",
    "Cola from the fountain": "091309",
    "Tonic water on ice": "047408",
    "Bitter lemon": "056708",
    "Ginger ale": "062208",
    "Apple spritzer": "050506",
    "Orange juice, freshly pressed": "061600",
    "Grapefruit juice without sugar": "026800",
    "Tomato juice with pepper": "022400",
    "Kombucha, nearly vinegar": "033805",
}
_CHOICES = 8  # number of arms of a duel
_SCALE = 6.0  # norm of the hidden theta: answers are rarely random
_SECONDS_AN_ANSWER = 0.7
_ROUND_SECONDS = 5.0
_POLL_SECONDS = 0.2
_SUMMARY = "summary.json"
_WAITS = re.compile(
    r"(?:round \d+(?:, [a-z0-9 ]+:| is not counted:| waits:|: \d+ of)|sending the last).*(?=\n)"
)
_EXCHANGE = re.compile(r"(round \d+), exchange (\d+): .* have replied")
_FIRST_EXCHANGES = 8  # about as many in the first round, until the minimisation has converged
_NODE_CONFIG = {"min-duels-per-upload": 2}  # uploads start early; no data leaves this machine
_EPSILON = 50.0  # with --secure; protects nobody
_SECURE_ROUNDS = 20  # the noise depends on their number
_DEVICES, _SECURE_DEVICES, _PEOPLE = 3, 6, 2  # by default
_CLIP = math.sqrt(len(FEATURES))  # features are from -1 to 1


def arms() -> list[dict[str, Any]]:
    """Return key, text and features of the drinks; features are from -1 to 1."""
    return [
        {
            "key": text.split(",")[0].lower(),
            "text": text,
            "features": [(int(digit) - 4.5) / 4.5 for digit in digits],
        }
        for text, digits in DRINKS.items()
    ]


def _answer_duels(device: Device, theta: FloatArray, seed: int, stop: threading.Event) -> None:
    """Answer the duels of a device by the Bradley-Terry-Luce model, until ``stop`` is set.

    ``theta``, (d,), is the true preference. It is not sent to any process.
    """
    rng = np.random.default_rng(seed)
    features = np.array([arm["features"] for arm in arms()])
    while not stop.wait(rng.exponential(_SECONDS_AN_ANSWER)):
        with contextlib.suppress(FederationError):  # the service is not available
            shown = features[rng.choice(len(features), _CHOICES, replace=False)]
            duel = device.ask("/duels", {"features": shown.tolist()})
            gap = theta @ (shown[duel["first"]] - shown[duel["second"]])
            preferred = "first" if rng.random() < 1 / (1 + np.exp(-gap)) else "second"
            device.ask(f"/duels/{duel['id']}/answer", {"preferred": preferred})


def demonstrate(arguments: argparse.Namespace, folder: Path) -> None:
    """Start the federation, print each step and each round until the end, and stop it."""
    theta = np.random.default_rng(arguments.seed).standard_normal(len(FEATURES))
    theta *= _SCALE / np.linalg.norm(theta)
    mode: dict[str, Any] = {"node_config": _NODE_CONFIG}
    if arguments.secure:
        mode = {"secure": Secure(len(FEATURES), _EPSILON)}
    file = folder / "arms.csv"
    with LocalFederation(folder, arguments.devices, arms=file, **mode) as federation:
        rows = [[arm["key"], arm["text"], *arm["features"]] for arm in arms()]
        with file.open("w", encoding="utf-8", newline="") as table:
            csv.writer(table).writerows([("arm", "text", *FEATURES), *rows])
        _say(f"the logs are in {federation.folder / 'logs'}")
        if arguments.secure:
            _say(f"secure sums with epsilon={_EPSILON:g}, a limit too large to protect anybody")
            _say("for epsilon=3, hundreds of devices are needed, and another party runs the helper")
        federation.start(_say)
        taken = federation.devices[: arguments.people]
        stop = threading.Event()
        with ThreadPoolExecutor(len(taken) or 1) as people, contextlib.ExitStack() as stack:
            stack.callback(stop.set)
            for seed, device in enumerate(taken):
                people.submit(_answer_duels, device, theta, seed, stop)
            if taken:
                names = ", ".join(device.key.name for device in taken)
                _say(f"simulated users are answering duels on {names}")
            for device in federation.devices[arguments.people :]:
                _say(f"{device.key.name} is yours: {device.url}")
            (federation.results / _SUMMARY).unlink(missing_ok=True)  # of an earlier demo
            rounds = "each is one report of every device"
            if not arguments.secure:
                rounds = f"the first one takes about {_FIRST_EXCHANGES} exchanges"
            _say(f"starting the rounds; {rounds}")
            if taken:
                _say("correct: pairs of drinks that the estimate orders as the simulated users do")
            run = federation.run(
                algorithm="fldb-ons",
                **({"privacy_clip": _CLIP} if arguments.secure else {}),
                dimension=len(FEATURES),
                devices_rounds=arguments.rounds or 0,
                devices_round_seconds=_ROUND_SECONDS,
                devices_at_least=arguments.devices,
            )
            report(federation, run, theta, arguments)


def report(
    federation: LocalFederation,
    run: LocalProcess,
    theta: FloatArray,
    arguments: argparse.Namespace,
) -> None:
    """Print exchanges and rounds until the run ends, a process has ended, or the time is over."""
    deadline = time.monotonic() + (60 * arguments.minutes if arguments.minutes else np.inf)
    before = seen = len(federation.rounds())
    of = f" of {before + arguments.rounds}" if arguments.rounds else ""
    printed, state = 0, ""
    while time.monotonic() < deadline:
        ended = not run.is_running
        waits = _WAITS.findall(run.output())
        for line in waits[printed:]:
            if (shown := progress(line, of)) != state and shown:
                _say(shown)
            state = shown
        printed = len(waits)
        model = federation.model()
        rows = federation.rounds()[: model["round"]] if model else []
        for row in rows[seen:]:
            line = f"round {row['round']}{of}: {_line(row)}"
            if model and arguments.people:
                line += f"; {correct(model['theta_sync'], theta):.0%} of all pairs correct"
            _say(line)
        seen = len(rows)
        if ended and not (federation.results / _SUMMARY).exists():
            raise FederationError(f"the ServerApp ended before the last round; {run.reason()}")
        if ended:
            return
        federation.check()
        time.sleep(_POLL_SECONDS)


def progress(line: str, of: str) -> str:
    """Return a line of the server about a wait without the parts that change in it.

    ``of`` is the text after the number of a round. A later round is one exchange, and its wait has
    no line of its own.
    """
    found = _EXCHANGE.match(line)
    if found is None:
        return line.partition(", waiting up to")[0]
    name, count = found[1], int(found[2])
    return f"{name}{of}: exchange {count}" if name == "round 1" else ""


def _line(row: dict[str, str]) -> str:
    devices = f"{row['contributed']} of {row['asked']} devices"
    if not row["predicted"]:
        return f"a noisy sum over {devices}, about {row['duels']} duels"
    return f"{row['duels']} duels, {devices}"


def correct(found: Sequence[float], theta: FloatArray) -> float:
    """Return the share of all pairs of drinks that an estimate, (d,), orders as ``theta`` does."""
    features = np.array([arm["features"] for arm in arms()])
    first, second = np.triu_indices(len(features), 1)
    differences = features[first] - features[second]
    return float(np.mean((differences @ np.array(found) > 0) == (differences @ theta > 0)))


def _say(line: str) -> None:
    print(line, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    count = bounded(int, 0)
    add(
        "--secure", action="store_true",
        help="secure sums: the server obtains only noisy sums",
    )  # fmt: skip
    add(
        "--devices", type=bounded(int, 1), metavar="N",
        help=f"number of devices (default: {_DEVICES}, or {_SECURE_DEVICES} with --secure)",
    )  # fmt: skip
    add(
        "--people", type=count, metavar="N",
        help=f"number of simulated users, one per device (default: {_PEOPLE}, or all devices but"
        " one with --secure)",
    )  # fmt: skip
    never = "(default: until Ctrl-C)"
    until = parser.add_mutually_exclusive_group()
    until.add_argument(
        "--rounds", type=bounded(int, 1), metavar="N", help=f"end after N rounds {never}"
    )
    until.add_argument(
        "--minutes", type=bounded(float, 0.01), metavar="N", help=f"end after N minutes {never}"
    )
    add(
        "--dir", type=Path,
        help="folder of the federation, to resume it later (default: a temporary one)",
    )  # fmt: skip
    add(
        "--seed", type=count, default=0, metavar="N",
        help="seed of the users' preference (default: %(default)s)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.devices is None:
        arguments.devices = _SECURE_DEVICES if arguments.secure else _DEVICES
    if arguments.secure and arguments.rounds is None:
        arguments.rounds = _SECURE_ROUNDS
    if arguments.people is None:
        arguments.people = arguments.devices - 1 if arguments.secure else _PEOPLE
    if arguments.people > arguments.devices:
        parser.error(f"--people {arguments.people}: must be at most --devices {arguments.devices}")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exit status 1, with an error on stderr, if it fails."""
    arguments = _arguments(argv)
    require(program(), *SERVICE_EXTRA)
    # Stopping takes seconds; a second signal must not interrupt it.
    with ending_in_one_line("stopped", insist=False), contextlib.ExitStack() as stack:
        folder = arguments.dir and arguments.dir.expanduser().absolute()
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="fldb-demo-")
            folder = Path(stack.enter_context(temporary))
        demonstrate(arguments, folder)
    kept = f"its folder is {folder}" if arguments.dir else "its folder is removed (--dir keeps it)"
    _say(f"the demo has ended; {kept}")


if __name__ == "__main__":
    main()
