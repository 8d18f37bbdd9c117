"""Flower's ClientApp."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one message, with simulated agents, or the store or the vault of a device."""
    # On a device, each message starts a new process: import only what it needs.
    if context.run_config.get("mode") == "devices":
        if context.run_config.get("secure"):
            from clients import relay  # noqa: PLC0415

            return relay.train(message, context)
        from clients import device  # noqa: PLC0415

        return device.train(message, context)
    from clients import simulated  # noqa: PLC0415

    return simulated.train(message, context)
