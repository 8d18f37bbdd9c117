"""Flower's entry point on a node."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients import simulated

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one broadcast."""
    return simulated.train(message, context)
