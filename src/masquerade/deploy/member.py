"""A client's machine: it answers whatever the server asks, and keeps data, states and models.

Its folder holds `data.toml`, which says where its samples are, and for every run what was agreed,
its states, and in the end its models.
"""

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from masquerade import __version__
from masquerade.config import toml
from masquerade.config.settings import Config
from masquerade.data import Federation
from masquerade.deploy import messages
from masquerade.deploy.agreement import AGREED, Agreement, check_code, write_sums
from masquerade.deploy.facts import Facts, Form, counts_of, translated
from masquerade.deploy.messages import Answer, Question
from masquerade.deploy.models import personal_of
from masquerade.deploy.own_data import FILE as DATA
from masquerade.deploy.own_data import at, fingerprint, read_all, read_code, read_own
from masquerade.deploy.participant import STATES, Invitation, Participant, Seat
from masquerade.deploy.status import ClientStatus, StatusFile
from masquerade.engine.remote import Call
from masquerade.errors import MasqueradeError
from masquerade.experiments.personal import Personal
from masquerade.results.json_records import from_json, parsed, to_json
from masquerade.storage import atomic, sealed
from masquerade.storage.run_directory import check_name

RUNS, SEAT = "runs", "seat.json"
LONGEST_TEXT = 1000
DOING = {"train": "training", "adapt": "measuring"}
"""What a client's status says that it does, by the kind of a question; all else is preparing."""


@dataclass
class Member:
    """Answers the messages of a server, one at a time."""

    folder: Path
    _participants: dict[str, Participant] = field(default_factory=dict)
    _read: tuple[Any, Federation] | None = None

    def answer(self, data: bytes) -> bytes:
        """Do what a message asks, and say what came of it, or why it was not done.

        Faults of this machine (a full disk) are raised.
        """
        try:
            question = messages.read(Question, data)
        except MasqueradeError as error:
            return messages.write(_refusal(Question(run="", client="", nonce="", kind=""), error))
        kinds: dict[str, Callable[[Question], Answer]] = {
            messages.HELLO: self._hello,
            messages.SUMS: self._sums,
            messages.SETTLE: self._settle,
            messages.REFUSED: self._refused,
        }
        self.note(doing=DOING.get(question.kind, "preparing"))
        try:
            said = kinds.get(question.kind, self._work)(question)
        except MasqueradeError as error:
            if error.code != "E615":
                self.note(refused=str(error))
            said = _refusal(question, error)
        except OSError as error:
            self.note(refused=f"{type(error).__name__}: {error}")
            raise
        except Exception as error:
            # What an error says may hold what samples say; it stays here.
            logging.getLogger(__name__).exception("a question of kind %s failed", question.kind)
            text = f"{type(error).__name__} while it did `{question.kind}`; the log there says more"
            self.note(refused=f"E614 {text}")
            said = _refusal(question, MasqueradeError("E614", text))
        finally:
            self.note(doing="waiting")
        return messages.write(said)

    def note(self, **changes: Any) -> None:
        """Write down where this client stands, for `masquerade deploy status` here."""
        if "doing" in changes:
            changes["since"] = time.time()
        # Whoever looks is served less well; what was asked is done all the same.
        with suppress(OSError):
            self._status.update(**changes)

    @cached_property
    def _status(self) -> StatusFile[ClientStatus]:
        return StatusFile(self.folder, ClientStatus.read(self.folder) or ClientStatus())

    def try_data(self) -> None:
        """Refuse code and data that cannot be read, before a server asks for them."""
        read_code(self.folder)
        read_all(self.folder)

    def runs(self) -> list[str]:
        """Name the runs that it takes part in, or did; the last one first."""
        found = (self.folder / RUNS).glob(f"*/{AGREED}")
        return [each.parent.name for each in sorted(found, key=_written, reverse=True)]

    def participant(self, run: str) -> Participant:
        """Return it as it takes part in a run; E611 where it does not know the run."""
        if run not in self._participants:
            folder = self.folder / RUNS / check_name(run)
            then = "It has to be told what is agreed."
            try:
                agreement = Agreement.load(folder)
                seat = sealed.read_record(Seat, folder / SEAT, run, then)
            except FileNotFoundError:
                text = (
                    f"this client does not know the run `{run}`; it has to be told what is agreed"
                )
                raise MasqueradeError("E611", text) from None
            except MasqueradeError as damage:
                text = f"of the run `{run}` {str(damage).removeprefix('E401 ')}"
                raise MasqueradeError("E611", text) from None
            self._participants[run] = self._made(agreement, seat, folder)
        return self._participants[run]

    def personal(self, view: str = "", run: str = "") -> Personal:
        """Return its model of a view (the default one), ready to predict and to be exported.

        It is that of the last run that it took part in, unless another is named.
        """
        runs = self.runs()
        if not runs:
            text = f"{self.folder} took part in no run yet; wait until training is done"
            raise MasqueradeError("E408", text)
        return personal_of(self.participant(run or runs[0]), view)

    def own(self, config: Config) -> Federation:
        """Return its samples, split as the settings of a federation say."""
        read_code(self.folder)
        return self._own(config)

    def _made(self, agreement: Agreement, seat: Seat, folder: Path) -> Participant:
        read_code(self.folder)
        own = translated(self._own(agreement.settings()), agreement.form)
        data = at(replace(own, name=agreement.name), 0, seat.id)
        return Participant(agreement, seat, folder, data)

    def _own(self, config: Config) -> Federation:
        """Read its samples, once for each way of splitting them."""
        key = (self.folder / DATA).read_bytes(), config.data
        if self._read is None or self._read[0] != key:
            self._read = key, read_own(self.folder, config.data)
        return self._read[1]

    def _hello(self, question: Question) -> Answer:
        """Say what its data look like."""
        read_code(self.folder)
        tables = toml.read(question.body.decode())
        check_code(tables.get("code", {}))
        # Whoever has changed its data since is asked anew.
        self._read = None
        own = self._own(toml.parse(tables, "the settings of the federation"))
        counts = counts_of(own, 0)
        self.note(samples=counts)
        facts = Facts(
            Form.of(own),
            *counts,
            fingerprint=fingerprint(own, question.run),
            torch=torch.__version__,
            masquerade=__version__,
        )
        return _answer(question, json.dumps(to_json(facts)).encode())

    def _sums(self, question: Question) -> Answer:
        """Say what its training samples and labels sum to."""
        draft = Agreement.from_bytes(question.body)
        data = translated(self._own(draft.settings()), draft.form)
        return _answer(question, write_sums(draft, data, 0))

    def _settle(self, question: Question) -> Answer:
        """Take over what is agreed, if it fits this client's samples and machine."""
        try:
            told = from_json(Invitation, parsed(question.body))
        except ValueError as error:
            raise MasqueradeError("E610", f"an invitation cannot be read: {error}") from None
        if (told.agreement.run, told.seat.name) != (question.run, question.client):
            raise MasqueradeError("E606", "what was agreed is of another run or client")
        folder = self.folder / RUNS / check_name(question.run)
        made = self._made(told.agreement, told.seat, folder)
        made.try_out()
        made.take(question.order)
        if made.budget is not None:
            made.budget.spent_at_least(told.seat.steps)
        if told.anew:
            atomic.discard(folder / STATES)
        sealed.write_record(folder / SEAT, question.run, told.seat)
        told.agreement.save(folder)
        self._participants[question.run] = made
        self.note(run=question.run, rounds=made.spec.train.rounds, round=0, refused="")
        return _answer(question)

    def _refused(self, question: Question) -> Answer:
        """Note why the server does not let it take part, where its operator looks."""
        text = " ".join(question.body[:LONGEST_TEXT].decode(errors="replace").split())
        self.note(refused=text)
        logging.getLogger(__name__).error("%s", text)
        return _answer(question)

    def _work(self, question: Question) -> Answer:
        """Do a round, or measure a view."""
        made = self.participant(question.run)
        if question.client != made.seat.name or question.kind not in messages.WORK:
            text = f"a question to {question.client} to do `{question.kind}`"
            raise MasqueradeError("E606", f"{text}; this is {made.seat.name}")
        made.take(question.order)
        call = Call(
            run=question.run,
            client=question.id,
            kind=question.kind,
            view=question.view,
            number=question.number,
            base=question.base,
            body=question.body,
            novel=question.novel,
            final=question.final,
        )
        reply = made.client.answer(call)
        if question.kind == "train":
            self.note(round=question.number + 1, trained=time.time(), refused="")
        elif question.final:
            self.note(measured=time.time(), refused="")
        flops = tuple(tuple(column) for column in reply.flops)
        return replace(_answer(question, reply.body), flops=flops)


def open_member(folder: Path) -> Member:
    """Open the folder of a client."""
    if not (folder / DATA).is_file():
        text = f"{folder} is no client's folder: it has no {DATA}; join a federation first"
        raise MasqueradeError("E408", text)
    return Member(folder)


def _answer(question: Question, body: bytes = b"") -> Answer:
    return Answer(run=question.run, client=question.client, nonce=question.nonce, body=body)


def _refusal(question: Question, error: MasqueradeError) -> Answer:
    """Say why something was not done; what is wrong with data is told in the log here alone."""
    text = str(error).removeprefix(f"{error.code} ")
    if error.code.startswith("E3"):
        logging.getLogger(__name__).error("%s", error)
        text = "its data cannot be read or used; the log there says why"
    return replace(_answer(question), code=error.code, text=text)


def _written(path: Path) -> float:
    return path.stat().st_mtime
