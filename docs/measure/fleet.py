"""Many nodes of a SuperLink in this process, over the client that Flower's SuperNode has.

A SuperNode is a process that starts another one for each message. Here a node is an object: it
registers itself, sends heartbeats, asks for messages every three seconds, and replies, with the
same requests as a SuperNode. A few threads serve all nodes. Flower has no public API for this; what
is used of its internals is in this module only.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import (
    ProtobufCall,
    ProtobufClientInterceptor,
    ProtobufRequestContext,
)
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

POLL_SECONDS = 3.0
"""Pause of a SuperNode after it has found no message."""
HEARTBEAT_SECONDS = 30.0
"""Time between two heartbeats of a SuperNode."""
_LIFE_SECONDS = 600.0  # without a heartbeat; on a slow machine, one can be late
_RETRIES = (0.1, 1.0, 5.0, 10.0)  # seconds before a request is sent again
_UNAVAILABLE_SECONDS = 0.2  # before an object that is not there yet is asked for again
_OBJECT_SECONDS = 120.0  # after which it is missing


class Traffic:
    """Sends and counts the requests of all nodes, and their bytes with HTTP's headers."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # by endpoint
        self.sent = self.received = 0  # bytes
        self.failed = 0  # requests, which were sent again
        self._lock = threading.Lock()

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request, again if the connection or the server fails, and count it."""
        for pause in _RETRIES:
            with contextlib.suppress(httpx.TransportError):  # an idle connection was closed
                if not (response := call_next(context)).is_server_error:
                    break
            self.failed += 1
            time.sleep(pause)
        else:
            response = call_next(context)
        endpoint = context.request.url.path.rsplit("/", 1)[-1]
        with self._lock:
            self.requests[endpoint] += 1
            self.sent += _bytes(context.request)
            self.received += _bytes(response)
        return response


def _bytes(part: httpx.Request | httpx.Response) -> int:
    """Return the bytes of the headers, of the first line approximately, and of the body."""
    return 40 + sum(len(k) + len(v) + 4 for k, v in part.headers.raw) + len(part.content)


class LightNode:
    """A node without a process; ``reply`` returns the content of the reply to a message."""

    def __init__(
        self,
        address: str,
        certificates: Path,
        reply: Callable[[Message], RecordDict],
        traffic: Traffic,
    ) -> None:
        private, public = generate_key_pairs()
        self._key = public_key_to_bytes(public)
        self._reply = reply
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, public),
            traffic,
        ]
        self.client = FleetHttpClient.from_server_address(
            address, False, certificates.read_bytes(), interceptors
        )
        self._node = Node()
        self._heartbeat = 0.0

    def connect(self) -> None:
        """Register and activate the node."""
        self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self._key))
        request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=_LIFE_SECONDS)
        self._node = Node(node_id=self.client.ActivateNode(request).node_id)
        self._heartbeat = time.monotonic() + HEARTBEAT_SECONDS

    def step(self) -> bool:
        """Ask for a message and reply to it; return False if there is none."""
        now = time.monotonic()
        if now >= self._heartbeat:
            beat = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_LIFE_SECONDS)
            self.client.SendNodeHeartbeat(beat)
            self._heartbeat = now + HEARTBEAT_SECONDS
        found = self.client.PullMessages(PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return False
        run = message_from_proto(found.messages_list[0]).metadata.run_id
        message = self._pull(run, found.message_object_trees[0])
        self._push(run, Message(self._reply(message), reply_to=message))
        return True

    def _pull(self, run: int, tree: ObjectTree) -> Message:
        contents = {each.object_id: b"" for each in iterate_object_tree(tree)}
        for key in contents:
            request = PullObjectRequest(node=self._node, run_id=run, object_id=key)
            deadline = time.monotonic() + _OBJECT_SECONDS
            while not (response := self.client.PullObject(request)).object_available:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"a part of a message is not there: {key}")
                time.sleep(_UNAVAILABLE_SECONDS)
            contents[key] = response.object_content
        request = ConfirmMessageReceivedRequest(
            node=self._node, run_id=run, message_object_id=tree.object_id
        )
        self.client.ConfirmMessageReceived(request)
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _push(self, run: int, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[0.0],
        )
        response = self.client.PushMessages(request)
        for key in response.objects_to_push:
            part = PushObjectRequest(
                node=self._node,
                run_id=run,
                object_id=key,
                object_content=objects[key].deflate(),
                session_id=response.session_id,
            )
            self.client.PushObject(part)


class Fleet:
    """Serves nodes with a few threads, until it is closed; a context manager.

    ``failure`` is the first error of a node, whose thread has ended.
    """

    def __init__(self) -> None:
        self._nodes: list[LightNode] = []
        self._due: list[tuple[float, int]] = []  # when, and the place of a node
        self._condition = threading.Condition()
        self._closed = False
        self.failure: Exception | None = None
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(16)]

    def __enter__(self) -> Fleet:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()
        for node in self._nodes:
            node.client.close()

    def add(self, node: LightNode) -> None:
        """Connect a node and serve it."""
        node.connect()
        with self._condition:
            self._nodes.append(node)
            heapq.heappush(self._due, (time.monotonic(), len(self._nodes) - 1))
            self._condition.notify()

    def _serve(self) -> None:
        try:
            while (place := self._next()) is not None:
                while self._nodes[place].step():
                    pass
                with self._condition:
                    heapq.heappush(self._due, (time.monotonic() + POLL_SECONDS, place))
                    self._condition.notify()
        except Exception as error:  # whoever waits for the nodes reports it
            self.failure = self.failure or error

    def _next(self) -> int | None:
        """Wait for the node that is due next, and return its place; None if the fleet is closed."""
        with self._condition:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[1]
                self._condition.wait(wait)
        return None
