"""Names in the broker and in Redis, in one place, so that gateway, worker and operator find the same keys."""

PREFIX = "shoal:"

CATALOG = PREFIX + "catalog"  # JSON of catalog.snapshot.Snapshot
CATALOG_VERSION = PREFIX + "catalog:version"  # integer, grows with every change; also a channel that announces it
KEYS_VERSION = PREFIX + "keys:version"  # the same for API keys, which themselves stay in the database
WORKERS = PREFIX + "workers"  # zset worker id -> unix time of its last beat
CANCELLED = PREFIX + "cancelled"  # zset request id -> unix time, trimmed after an hour
DEMAND = PREFIX + "demand"  # zset queue name -> unix time of its last publish

TASKS = PREFIX + "tasks"  # zset task id -> unix time it was accepted, the newest ten thousand
DEAD = PREFIX + "dead"  # zset request id -> unix time it was given up; see protocol.dead_letters
DEAD_FACTS = DEAD + ":facts"  # hash request id -> JSON about it, none of it a caller's
DEAD_MESSAGES = DEAD + ":messages"  # hash request id -> its message's body, as far as it can be sent again
DEAD_SIZES = DEAD + ":sizes"  # hash request id -> bytes kept for it
DEAD_BYTES = DEAD + ":bytes"  # their sum

INTAKE_QUEUE = "shoal"  # where plain Celery clients send the public tasks
OPS_QUEUE = "ops"  # housekeeping, ordinary Celery tasks

LANES = ("interactive", "bulk")  # most urgent first

# RabbitMQ 4 would drop what came back twenty times, however innocent; workers count what they started, and give up.
DELIVERIES = 1_000_000

WAKE_LENGTH = 1024  # about how many announcements a wake stream keeps, cancels among them
COUNTS_KEPT_S = 86400  # how long `published` outlives the last publish


def queue(pool: str, model: str, lane: str) -> str:
    """The broker queue of one model and lane in one pool; `/` reads badly in broker tools, `__` does not."""
    return f"shoal.{pool}.{model.replace('/', '__')}.{lane}"


def queue_arguments(lane: str) -> dict[str, str | int]:
    """How RabbitMQ is to keep a lane's queues. Whoever declares one first decides, so all must ask for the same.

    Bulk work may wait long and must outlive a broken node; a call somebody waits for is better sent again.
    """
    return {"x-queue-type": "quorum", "x-delivery-limit": DELIVERIES} if lane == "bulk" else {}


def wake_stream(pool: str) -> str:
    """A short Redis stream that names queues just published to and requests just cancelled; workers block on it."""
    return f"{PREFIX}wake:{pool}"


def mailbox(gateway_id: str) -> str:
    """A Redis list of packed replies, drained by one gateway process."""
    return f"{PREFIX}mail:{gateway_id}"


def mailbox_reader(mailbox: str) -> str:
    """Which of its gateway's connections may take replies out of a mailbox."""
    return f"{mailbox}:reader"


def mark(gateway_id: str) -> str:
    """A mark that a gateway leaves at the broker: gone, the broker has lost what it was to remember."""
    return f"shoal.mark.{gateway_id}"


def worker(worker_id: str) -> str:
    """JSON of a worker's last beat, expiring when the worker stops beating."""
    return f"{PREFIX}worker:{worker_id}"


def members(pool: str) -> str:
    """zset worker id -> unix time at which it last said what it has."""
    return f"{PREFIX}pool:{pool}:workers"


def holders(pool: str) -> str:
    """A hash model -> who last said that it has it, when, and what the model costs there; see workers.neighbours."""
    return f"{PREFIX}pool:{pool}:models"


def task(request_id: str) -> str:
    """A hash: what is known of a task accepted with 202."""
    return f"{PREFIX}task:{request_id}"


def task_result(request_id: str) -> str:
    """Where Celery's Redis result backend keeps the result of this id; the one place a stored result lives."""
    return f"celery-task-meta-{request_id}"


def attempts(request_id: str) -> str:
    """How often a request was started by a worker that then vanished."""
    return f"{PREFIX}attempts:{request_id}"


def replaying(request_id: str) -> str:
    """There while somebody sends this dead letter again."""
    return f"{DEAD}:replaying:{request_id}"


def login_tries(kind: str, who: str) -> str:
    """How many passwords were tried for an account, or from an address."""
    return f"{PREFIX}login:{kind}:{who}"


def published(queue: str) -> str:
    """A hash of what gateways ever published to a queue: messages, items, cost; it only grows."""
    return f"{PREFIX}published:{queue}"


def blob(blob_id: str) -> str:
    return f"{PREFIX}blob:{blob_id}"
