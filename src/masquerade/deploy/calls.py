"""Calls of an engine whose clients are elsewhere, as questions to a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass

from masquerade.deploy.fleet import Fleet
from masquerade.deploy.messages import Answer, Question
from masquerade.engine.remote import Call, Exchanged, Reply


@dataclass
class Calls:
    """A `Transport` over a fleet, with a deadline."""

    fleet: Fleet
    names: Sequence[str]
    deadline: float
    seconds: float = 0.0
    """How long the last exchange took."""

    def exchange(self, calls: Sequence[Call]) -> Exchanged:
        """Ask clients, and wait for answers until the deadline."""
        begun = self.fleet.now()
        questions = {self.names[call.client]: _question(call) for call in calls}
        answers = self.fleet.ask(questions, self.deadline)
        self.seconds = self.fleet.now() - begun
        unused, self.fleet.unused = self.fleet.unused, []
        replies = {
            c.client: answers[self.names[c.client]]
            for c in calls
            if self.names[c.client] in answers
        }
        return Exchanged(
            {id: _reply(answer) for id, answer in replies.items()},
            [_reply(each) for each in unused],
        )


def _question(call: Call) -> Question:
    about = {name: value for name, value in vars(call).items() if name not in ("run", "client")}
    return Question(run=call.run, client="", nonce="", id=call.client, **about)


def _reply(answer: Answer) -> Reply:
    return Reply(answer.body, answer.flops)
