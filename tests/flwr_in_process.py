"""`flwr run . --stream ...` with Flower's messages in this process, without a SuperLink.

The results are in a folder ``flower-*``, whatever ``output-dir`` is.
"""

import argparse
import tempfile

from flwr.common.config import parse_config_args

from fldb_flower.settings import from_flat
from simulations.engines import inprocess


def main() -> None:
    parser = argparse.ArgumentParser()
    for word in ("run", "app"):
        parser.add_argument(word)
    parser.add_argument("--stream", action="store_true", required=True)
    parser.add_argument("--run-config", default="")
    parser.add_argument("--federation-config", default="")
    asked = parser.parse_args()
    assert (asked.run, asked.app) == ("run", ".")
    parse_config_args([asked.federation_config])
    config = parse_config_args([asked.run_config])
    config.pop("output-dir", None)
    folder = tempfile.mkdtemp(prefix="flower-", dir=".")
    inprocess.run(from_flat(config, "flwr run"), folder)


if __name__ == "__main__":
    main()
