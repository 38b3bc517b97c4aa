"""`serve`: the whole system on this machine, from nothing to READY, watched until it is told to stop."""

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from project.cli import embedded, environment, preflight, runfile, services
from project.cli.failure import CannotStart
from project.cli.output import Output
from project.cli.services import Service
from project.cli.supervisor import Stopped, Supervisor
from protocol import links
from workers import devices

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(options: argparse.Namespace) -> int:
    given = environment.apply(options)
    data = environment.data()
    os.environ["SHOAL_DATA"] = str(data)
    preflight.check_packages()
    preflight.check_data(data)
    _widen_hosts(options.host)
    if not options.no_flower:
        os.environ.setdefault("SHOAL_FLOWER_PORT", "5555")
        os.environ.setdefault("SHOAL_FLOWER_URL", f"http://127.0.0.1:{os.environ['SHOAL_FLOWER_PORT']}")
    with runfile.hold(data):
        _end_leftovers(data)
        plan = _plan_embedded(given, data)
        settings = environment.settings()
        _check(options, given, settings)
        output = Output(data / "logs")
        try:
            return _Serving(options, settings, plan, output).run()
        finally:
            runfile.remove(data)
            output.close()


class _Serving:
    """One run of `serve`."""

    def __init__(self, options: argparse.Namespace, settings: Any, plan: embedded.Plan | None, output: Output) -> None:
        self._options = options
        self._settings = settings
        self._plan = plan
        self._output = output
        self._started = time.monotonic()
        self._launcher = runfile.Process("launcher", os.getpid(), psutil.Process().create_time())
        self._url = services.http_url(options.host, options.port)
        self._supervisor = Supervisor(output, self._record)
        self._secrets: dict[str, Any] = {}  # of the first admin, until they were shown

    def run(self) -> int:
        # What was ignored stays so: nohup asks to outlive a terminal. SIGINT always ends things, although shells
        # ignore it for all that they start in the background.
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:
                signal.signal(number, self._on_signal)
        try:
            self._start()
            self._supervisor.run()
        except Stopped as stopped:
            self._output.say(f"{stopped}: ending everything; what is on a device may finish first")
            return 0
        finally:
            self._supervisor.end()
            # The password of a start that failed cannot be shown again either.
            self._output.say("all ended", *self._admin())
        return 0

    def _start(self) -> None:
        if self._plan is not None:
            self._supervisor.start([services.valkey_service(self._plan)])
            self._supervisor.wait_until_ready()
        prepared = _prepare(self._output)
        if prepared.get("created"):
            self._secrets = prepared
        if not preflight.is_loopback(self._options.host) and not prepared["keys"]:
            raise CannotStart(
                f"{self._options.host} can be reached from other machines, and there is no API key yet: "
                "make one with `./shoal manage create_key --name NAME`."
            )
        self._supervisor.start(self._roles())
        self._supervisor.wait_until_ready()
        self._announce()

    def _roles(self) -> list[Service]:
        options, settings = self._options, self._settings
        roles = [services.gateway_service(options.host, options.port)]
        served = [device for device in devices_of(settings.SHOAL_DEVICE) for _ in range(options.workers)]
        for number, device in enumerate(served, 1):
            name = f"worker{number}" if len(served) > 1 else "worker"
            roles.append(services.worker_service(name, device, settings.SHOAL_REDIS_URL, settings.SHOAL_DRAIN_S))
        if not options.no_flower:
            roles.append(services.flower_service(settings.SHOAL_FLOWER_PORT))
        return roles

    def _announce(self) -> None:
        flower = "" if self._options.no_flower else f", Flower {self._settings.SHOAL_FLOWER_URL}"
        took = time.monotonic() - self._started
        ready = f"READY {self._url} (docs {self._url}/docs, admin {self._url}/admin/{flower}) after {took:.1f} s"
        self._output.say(ready, *self._admin(), "Try it:", _curl(self._url, self._settings.SHOAL_REQUIRE_KEYS))

    def _admin(self) -> list[str]:
        """The line that shows the first admin's password, once."""
        made, self._secrets = self._secrets, {}
        return [f"Admin user {made['username']!r}, password {made['password']!r}: shown only now."] if made else []

    def _record(self) -> None:
        names = ("SHOAL_DATA", "SHOAL_BROKER_URL", "SHOAL_REDIS_URL", "SHOAL_DATABASE_URL")
        record = runfile.Running(
            launcher=self._launcher,
            url=self._url,
            flower_url="" if self._options.no_flower else self._settings.SHOAL_FLOWER_URL,
            environment={name: os.environ[name] for name in names if os.environ.get(name)},
            processes=self._supervisor.processes(),
        )
        runfile.write(self._settings.SHOAL_DATA, record)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._supervisor.ask_to_stop(signal.Signals(number).name)


def _check(options: argparse.Namespace, given: environment.Given, settings: Any) -> None:
    preflight.check_port(options.host, options.port, "--port")
    preflight.check_door(options.host, settings.SHOAL_REQUIRE_KEYS)
    if not options.no_flower:
        preflight.check_port("127.0.0.1", settings.SHOAL_FLOWER_PORT, "--flower-port, or --no-flower")
    if given.redis:
        preflight.check_redis(settings.SHOAL_REDIS_URL, "--redis")
    if given.broker and given.broker != given.redis:
        check = preflight.check_redis if links.is_redis(given.broker) else preflight.check_amqp
        check(given.broker, "--broker")


def _plan_embedded(given: environment.Given, data: Path) -> embedded.Plan | None:
    """An explicit URL or one in the environment makes it needless."""
    if given.redis:
        return None
    plan = embedded.plan(data / "valkey", embedded.find_binary())
    os.environ["SHOAL_REDIS_URL"] = plan.url
    return plan


def _widen_hosts(host: str) -> None:
    """The names under which this machine is called, for Django's check of the Host header."""
    if preflight.is_loopback(host) or os.environ.get("SHOAL_ALLOWED_HOSTS"):
        return
    addresses = {address.address.partition("%")[0] for card in psutil.net_if_addrs().values() for address in card}
    known = {"localhost", host, socket.gethostname(), socket.getfqdn()} | addresses
    os.environ["SHOAL_ALLOWED_HOSTS"] = ",".join(sorted(f"[{name}]" if ":" in name else name for name in known if name))


def devices_of(device: str) -> list[str]:
    if device == "all" and (count := devices.cuda_count()):
        return [f"cuda:{number}" for number in range(count)]
    return [devices.resolve("auto" if device == "all" else device)]


def _prepare(output: Output) -> dict[str, Any]:
    command = services.python("-m", "project.cli.prepare")
    done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        output.child("prepare", line)
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise CannotStart(f"The database could not be prepared: {last}") from None
    if "error" in result:
        raise CannotStart(result["error"])
    return result


def _curl(url: str, needs_key: bool) -> str:
    body = json.dumps({"items": [{"text": "Hello, Shoal!"}]})
    key = ' -H "Authorization: Bearer $SHOAL_API_KEY"' if needs_key else ""
    return f"curl -s {url}/v1/encode/{MODEL}{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _end_leftovers(data: Path) -> None:
    """What a launcher that was killed left behind, where the kernel does not end children with their parent."""
    from project.cli import stop

    for name in stop.end_recorded(data):
        print(f"ended {name}, left over from before", file=sys.stderr)
