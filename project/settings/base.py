"""Settings that every role shares. Only the settings modules read the environment, through `project.env`."""

import math
import secrets
import socket
from pathlib import Path
from typing import Any

from project import env, logs
from protocol import links, names

BASE_DIR = Path(__file__).resolve().parents[2]

# Where things are
SHOAL_DATA: Path = env.folder("SHOAL_DATA", None) or BASE_DIR / ".shoal"
SHOAL_REDIS_URL = env.url("SHOAL_REDIS_URL", "redis://127.0.0.1:6379/0", links.REDIS_SCHEMES)
SHOAL_BROKER_URL = env.url("SHOAL_BROKER_URL", SHOAL_REDIS_URL, (*links.REDIS_SCHEMES, "amqp", "amqps"))
SHOAL_MODELS = env.folder("SHOAL_MODELS", None)
SHOAL_BUNDLES: Path = env.folder("SHOAL_BUNDLES", None) or SHOAL_DATA / "bundles"
SHOAL_CATALOG = env.folder("SHOAL_CATALOG", None)
SHOAL_OFFLINE = env.flag("SHOAL_OFFLINE", False)

# The gateway's door
SHOAL_REQUIRE_KEYS = env.flag("SHOAL_REQUIRE_KEYS", False)
SHOAL_ALLOWED_HOSTS = env.words("SHOAL_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
SHOAL_TRUSTED_ORIGINS = env.words("SHOAL_TRUSTED_ORIGINS", [])  # https://… in front of a proxy that ends TLS
SHOAL_REQUEST_TIMEOUT_S = env.seconds("SHOAL_REQUEST_TIMEOUT_S", 120)
SHOAL_COLD_WAIT_S = env.seconds("SHOAL_COLD_WAIT_S", 30)
SHOAL_PROVISION_WAIT_S = env.seconds("SHOAL_PROVISION_WAIT_S", 5)
SHOAL_MAX_BODY_BYTES = env.byte_count("SHOAL_MAX_BODY_BYTES", None) or 34 << 20
SHOAL_MEDIA_HOSTS = env.words("SHOAL_MEDIA_HOSTS", [])  # that gateways may fetch media from
SHOAL_MAX_PENDING = env.integer("SHOAL_MAX_PENDING", 8192, least=1)  # calls waiting per gateway process
SHOAL_TASK_TTL_S = env.integer("SHOAL_TASK_TTL_S", 3600, least=1)

# The worker
SHOAL_DEVICE = env.matching("SHOAL_DEVICE", "auto", r"auto|all|cpu|mps|cuda(:\d+)?", "auto, all, cpu, mps or cuda:N")
SHOAL_POOL = env.matching("SHOAL_POOL", "default", r"[a-z0-9][a-z0-9_-]{0,49}", "a short lower-case name")
SHOAL_WORKER_ID = env.matching(
    "SHOAL_WORKER_ID",
    # The random end keeps a restarted worker from meeting its former self's name at the broker.
    f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(3)}",
    r"[\w.-]{1,100}",
    "made of letters, digits, dots, dashes and underscores",
)
SHOAL_IDLE_UNLOAD_S = env.seconds("SHOAL_IDLE_UNLOAD_S", math.inf)
SHOAL_LOADS_AT_ONCE = env.integer("SHOAL_LOADS_AT_ONCE", 2, least=1)
SHOAL_HANG_S = env.seconds("SHOAL_HANG_S", 120.0)
SHOAL_LOAD_HANG_S = env.seconds("SHOAL_LOAD_HANG_S", 900.0)
SHOAL_MEMORY_BYTES = env.byte_count("SHOAL_MEMORY_BYTES", None)  # None: what the device or cgroup has
SHOAL_HOST_MEMORY_BYTES = env.byte_count("SHOAL_HOST_MEMORY_BYTES", None)  # None: a share of it beside a GPU
SHOAL_VISIBILITY_S = env.seconds("SHOAL_VISIBILITY_S", 3)
SHOAL_DRAIN_S = env.seconds("SHOAL_DRAIN_S", 25)
SHOAL_PREFETCH = env.integer("SHOAL_PREFETCH", 256, least=1)  # most messages per queue on RabbitMQ

# The database, for `gateway` alone: a worker learns the catalog from Redis and holds no credentials.
SHOAL_DATABASE = env.database("SHOAL_DATABASE_URL", SHOAL_DATA / "shoal.db")

# Flower, Celery's own monitor, as a process beside the gateway
SHOAL_FLOWER_HOST = env.text("SHOAL_FLOWER_HOST", "127.0.0.1")
SHOAL_FLOWER_PORT = env.integer("SHOAL_FLOWER_PORT", 5555, least=1)
SHOAL_FLOWER_AUTH = env.text("SHOAL_FLOWER_AUTH", "")  # user:password; needed on any host but loopback
SHOAL_FLOWER_URL = env.text("SHOAL_FLOWER_URL", "")  # where browsers reach it: the admin's link, none when empty

SHOAL_LOG_LEVEL = env.choice("SHOAL_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
LOGGING = logs.config(SHOAL_LOG_LEVEL)

DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS: list[str] = []
DATABASES: dict[str, dict[str, object]] = {}

# Celery, read by `project.celery` with the namespace CELERY
CELERY_BROKER_URL = links.kombu_url(SHOAL_BROKER_URL)
CELERY_RESULT_BACKEND = links.kombu_url(SHOAL_REDIS_URL)
CELERY_RESULT_EXPIRES = SHOAL_TASK_TTL_S
CELERY_REDIS_SOCKET_TIMEOUT = 5.0
CELERY_REDIS_SOCKET_CONNECT_TIMEOUT = 2.0
CELERY_TASK_PROTOCOL = 2
CELERY_TASK_DEFAULT_QUEUE = names.INTAKE_QUEUE
CELERY_TASK_ROUTES = {"ops.*": {"queue": names.OPS_QUEUE}}
CELERY_TASK_SERIALIZER = "json"  # also of replies to remote control, which any Celery client must read
CELERY_RESULT_SERIALIZER = "json"
CELERY_EVENT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["msgpack", "json"]  # never pickle: a message must not carry code
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SEND_SENT_EVENT = False
CELERY_BROKER_POOL_LIMIT = 2
CELERY_BROKER_HEARTBEAT = 10  # of RabbitMQ: a side that hears nothing for two of them gives the connection up
# A worker that lost its connection is back before RabbitMQ has missed the old one, which would still own the queue.
CELERY_CONTROL_QUEUE_EXCLUSIVE = False
CELERY_CONTROL_QUEUE_DURABLE = True  # RabbitMQ 4.3 refuses what is neither; it expires ten seconds after its worker
CELERY_BROKER_CONNECTION_TIMEOUT = 4
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = (
    {
        # Without socket timeouts a black-holed Redis would hang a publish for good.
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "visibility_timeout": 3600,  # of ordinary Celery workers; device workers renew leases of SHOAL_VISIBILITY_S
        "priority_steps": [0],  # lanes are queues of their own; more steps would be more keys in every pop
    }
    if links.is_redis(SHOAL_BROKER_URL)
    else {"confirm_publish": True, "read_timeout": 5, "write_timeout": 5}
)

env.refuse_near_misses()
