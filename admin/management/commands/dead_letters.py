"""Lists dead letters, sends them again or drops them; the admin's pages do the same."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from admin.dead import store
from inference.dead_letters import DeadLetters
from protocol import dead_letters
from protocol.errors import ShoalError


class Command(BaseCommand):
    help = "Requests that were given up on: list them, send them again (replay), or drop them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=("list", "replay", "drop"))
        parser.add_argument("id", nargs="*", help="as `list` shows them")
        parser.add_argument("--all", action="store_true", help="every dead letter there is")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        letters = store()
        try:
            if action == "list":
                self._list(letters)
                return
            ids = [letter.id for letter in letters.newest(dead_letters.MOST)] if options["all"] else options["id"]
            if not ids and not options["all"]:
                raise CommandError(f"Say which to {action}: ids as `dead_letters list` shows them, or --all.")
            if action == "drop":
                self.stdout.write(f"{letters.drop(ids)} dropped")
            else:
                self._replay(letters, ids)
        except redis.RedisError as error:
            raise CommandError(f"Redis does not answer ({type(error).__name__}).") from error
        except ShoalError as error:
            raise CommandError(error.message) from error

    def _list(self, letters: DeadLetters) -> None:
        for letter in letters.newest(dead_letters.MOST):
            died = datetime.fromtimestamp(letter.died, UTC).isoformat(timespec="seconds")
            kept = "" if letter.is_replayable else "  not replayable"
            about = f"{letter.model or '-'}  {letter.lane}  {letter.key or '-'}  {letter.attempts} attempts"
            self.stdout.write(f"{letter.id}  {died}  {letter.code}  {about}  {letter.worker}{kept}")

    def _replay(self, letters: DeadLetters, ids: list[str]) -> None:
        outcome = letters.replay(ids)
        for letter_id, problem in outcome.items():
            self.stdout.write(f"{letter_id}  {problem or 'sent again'}")
        if ids and all(outcome.values()):
            raise CommandError("None was sent again.")
