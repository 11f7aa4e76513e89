"""A grid without Flower's processes: every node answers at once, here, by a function of its own."""

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fairmean.flower.client import answer

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
FIRST = 1000  # the id of the node that has partition 0


def node_context(node, config=None):
    """What Flower tells the code on a node."""
    return Context(
        run_id=1, node_id=node, node_config=config or {"partition-id": node - FIRST}, state=RecordDict(), run_config={}
    )


class LocalGrid(Grid):
    """``nodes``: a function (message, context) → replies (a message, several, or None) for each node id."""

    def __init__(self, nodes):
        self.nodes, self.sent = dict(nodes), []

    @classmethod
    def honest(cls, model, data, clients=4, **more):
        """So many clients that do as they are told."""
        return cls({FIRST + k: lambda m, c: answer(m, c, model, data, **more) for k in range(clients)})

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append(message)
            given = self.nodes[node](message, node_context(node))
            replies += [] if given is None else [given] if isinstance(given, Message) else list(given)
        return replies

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def get_nodes(self):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError
