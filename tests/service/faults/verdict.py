"""What must hold after every fault, whatever it was."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.expected import RETRYABLE
from bench.load import LOST
from protocol.errors import WorkerLost
from tests.service.faults.system import DEADLINE_S
from tests.service.faults.traffic import Traffic

GRACE_S = 5.0  # between a deadline and the client's clock, on a machine with other work
ROUNDS = 30  # of sending again what was refused, half a second apart
SETTLE_S = 120.0
MOST_GIVEN_UP = 0.01  # of all requests
FINISHED = {"succeeded", "failed", "cancelled", "expired"}


class Verdict:
    """Of one run. `wrong_items` are requests whose own text breaks forwards, with the code each must get.

    `may_give_up` is for faults that kill a request's worker three times: a few may be taken for what kills workers.
    """

    def __init__(
        self,
        traffic: Traffic,
        wrong_items: Mapping[int, str] | None = None,
        *,
        may_lose: bool = False,
        may_give_up: bool = False,
    ):
        self._traffic = traffic
        self._given_up = {WorkerLost.code} if may_give_up else set()
        self._wrong_items = wrong_items or {}
        self._may_lose = may_lose  # a killed gateway takes its connections with it

    def check(self) -> None:
        """All of it, in this order: the first run, what a client that tries again gets, then the tasks."""
        self.check_answers()
        given_up = sum(answer.code in self._given_up for answer in self._traffic.answers.values())
        assert given_up <= self._traffic.count * MOST_GIVEN_UP, self.summary()
        self.check_retries()
        self.check_tasks()

    def check_answers(self) -> None:
        """Every request has an answer in time: the right vector, its own error, or one that says come back."""
        answers = self._traffic.answers
        assert set(answers) == set(range(self._traffic.count)), "requests without any answer"
        late = {index: answer.took for index, answer in answers.items() if answer.took > DEADLINE_S + GRACE_S}
        assert not late, f"answers after their deadline: {late}"
        complaints = [said for index in answers if (said := self._complaint(index)) is not None]
        assert not complaints, f"{len(complaints)} of {len(answers)}: {complaints[:5]} {self.summary()}"

    def check_retries(self) -> None:
        """Whoever was refused or cut off and sends again is served: the system is back."""
        for _ in range(ROUNDS):
            again = self._unserved()
            if not again:
                break
            time.sleep(0.5)
            self._traffic.send(again)
        assert not (left := self._unserved()), f"{len(left)} still unserved: {self.summary()}"
        self.check_answers()

    def check_tasks(self) -> None:
        """Each accepted task ends, once, as it should, and stays as it is."""
        tasks = self._traffic.tasks()
        found = self._settled(list(tasks))
        complaints = [said for task, index in tasks.items() if (said := self._task_complaint(index, found[task]))]
        assert not complaints, f"{len(complaints)} of {len(tasks)} tasks: {complaints[:5]}"
        again = self._traffic.read_tasks(list(tasks))
        changed = [task for task in tasks if _visible(again[task]) != _visible(found[task])]
        assert not changed, f"results that changed: {changed[:5]}"

    def summary(self) -> str:
        counts = Counter((answer.status, answer.code) for answer in self._traffic.answers.values())
        return ", ".join(f"{status or 'lost'} {code}: {count}" for (status, code), count in sorted(counts.items()))

    @property
    def refused(self) -> int:
        """How many of the last answers are errors or missing."""
        return sum(answer.status not in (200, 202) for answer in self._traffic.answers.values())

    def _complaint(self, index: int) -> str | None:
        answer, own = self._traffic.answers[index], self._wrong_items.get(index)
        if answer.status == 202 and answer.task is not None:
            return None
        if own is not None and answer.code == own:
            return None
        if answer.vector is not None:
            if own is not None:
                return f"request {index} should have failed with {own}"
            return None if self._traffic.is_right(index, answer.vector) else f"request {index} has another's vector"
        if answer.status == LOST:
            return None if self._may_lose else f"request {index} was cut off"
        return (
            None if answer.code in {*RETRYABLE, *self._given_up} else f"request {index}: {answer.status} {answer.code}"
        )

    def _unserved(self) -> list[int]:
        return [
            index
            for index, answer in self._traffic.answers.items()
            if answer.status not in (200, 202) and not (answer.code and answer.code == self._wrong_items.get(index))
        ]

    def _settled(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """Every task, finished."""
        found: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + SETTLE_S
        while left := [task for task in ids if task not in found]:
            read = self._traffic.read_tasks(left)
            found |= {task: body for task, body in read.items() if body["state"] in FINISHED}
            states = Counter(body["state"] for body in read.values())
            assert time.monotonic() < until, f"tasks that do not end: {dict(states)} of {len(left)}, {left[:3]}"
            time.sleep(0.2)
        return found

    def _task_complaint(self, index: int, body: Mapping[str, Any]) -> str | None:
        own = self._wrong_items.get(index)
        if own is not None:
            code = body.get("error", {}).get("code")
            return None if code == own else f"task of request {index} ended with {body['state']} {code}, not {own}"
        if body["state"] != "succeeded" and body.get("error", {}).get("code") not in self._given_up:
            return f"task of request {index} {body['state']}: {body.get('error')}"
        if body["state"] != "succeeded":
            return None
        values = np.asarray(body["result"]["items"][0]["dense"]["values"], np.float32)
        return None if self._traffic.is_right(index, values) else f"task of request {index} has another's vector"


def _visible(body: Mapping[str, Any]) -> Any:
    return body["state"], body.get("result"), body.get("error")
