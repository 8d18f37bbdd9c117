"""Flower's entry point on a node."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one broadcast, from simulated agents or from a device's store."""
    # On a device each message is a new process: it imports its own side alone.
    if context.run_config.get("mode") == "devices":
        from clients import device  # noqa: PLC0415

        return device.train(message, context)
    from clients import simulated  # noqa: PLC0415

    return simulated.train(message, context)
