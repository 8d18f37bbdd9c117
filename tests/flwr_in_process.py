"""`flwr run . --stream ...` with Flower's messages in this process, without a SuperLink.

The results are in a folder ``flower-*``, whatever ``output-dir`` is.
"""

import argparse
import tempfile
from dataclasses import replace

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
    nodes = parse_config_args([asked.federation_config]).get("num-supernodes", 2)
    config = parse_config_args([asked.run_config])
    config.pop("output-dir", None)
    settings = from_flat(config, "flwr run")
    engine = replace(settings.engine, num_nodes=nodes)
    inprocess.run(replace(settings, engine=engine), tempfile.mkdtemp(prefix="flower-", dir="."))


if __name__ == "__main__":
    main()
