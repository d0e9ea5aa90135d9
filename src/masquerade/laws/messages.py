"""Laws 3 and 8: messages cost what they are counted as, and stay within their limits."""

from collections.abc import Mapping

import torch

from masquerade.core import tree
from masquerade.core.part import ROUNDED, Message
from masquerade.evaluation.evaluate import Evaluator
from masquerade.laws.compare import equal
from masquerade.laws.law import DoesNotApply, LawBroken, Where, at, law
from masquerade.laws.problem import ROUNDS, Exchange, Problem, after, exchanges, two_clients
from masquerade.simulation.build import Simulation
from masquerade.simulation.state import RunState
from masquerade.wire import count, decode, digest, encode, nbytes
from masquerade.wire.session import Session, moved


@law(
    3,
    "Counted bytes are encoded bytes, and decoding gives back what was encoded.",
    "send parts whose masks are bool, one bit per entry or as `grain` says, with blocks that cover "
    "their tensor, and the same names for every client",
)
def counted_bytes_are_encoded_bytes(problem: Problem) -> None:
    """Encode what is sent either way, rounded and not, with a session and without."""
    messages = 0
    with problem.simulating(4) as made:
        state = after(made, 4)
        for exchange in exchanges(made, state, two_clients(made)):
            with at(**exchange.place):
                messages += _is_counted(exchange, state.session.one(exchange.id))
    if not messages:
        raise DoesNotApply("it sends nothing")


def _is_counted(exchange: Exchange, held: Session) -> int:
    """Hold both messages of an exchange to the law; return how many are not empty."""
    upload, _ = exchange.answer()
    # As both ends hold it after these rounds, and after this very download.
    received = moved(held, "down", count(exchange.download, {}).masks)
    # Sessions are about masks and rounding is about values: not every two have to meet.
    rounded = ROUNDED if exchange.id == two_clients(exchange.made)[0] else ()
    for message in (exchange.download, upload):
        for session in ({}, held, received):
            _is_encoded(message, session)
        for dtype in rounded:
            _is_encoded({name: part.to(dtype, 7) for name, part in message.items()}, held)
    return bool(exchange.download) + bool(upload)


def _is_encoded(message: Message, session: Session) -> None:
    """Counted bytes are encoded bytes, alone and stacked; what is decoded is what was sent."""
    data = encode(message, session=session)
    _as_many(int(nbytes(message, session)), data, "alone")
    both = {key: torch.stack([value] * 2) for key, value in session.items()}
    for counted in nbytes(tree.stack([message] * 2), both, lead=1).expand(2).tolist():
        _as_many(counted, data, "stacked")
    read = decode(data, message, session=session)
    if message.keys() != read.keys():
        raise LawBroken(f"parts {list(message)} are decoded to {list(read)}")
    for name, part in message.items():
        if digest(read[name]) != digest(part):
            raise LawBroken("other values are decoded than were encoded", Where(tensor=name))
        equal(read[name].keep, part.keep, f"another mask of `{name}` is decoded")
        equal(read[name].scale, part.scale, f"another scale of `{name}` is decoded")
    if encode(read, session=session) != data:
        raise LawBroken("what was decoded is encoded to other bytes")
    same = dict.fromkeys(message, True)
    short = encode(message, None, session, same)
    _as_many(int(nbytes(message, session, same)), short, "where the receiver has it")
    again = decode(short, message, held=message)
    equal(again, message, "what the receiver has is decoded to other bits")
    if encode(message, None, session, dict.fromkeys(message, False)) != data:
        raise LawBroken("what the receiver has not is encoded to other bytes")


def _as_many(counted: int, data: bytes, how: str) -> None:
    if counted != len(data):
        raise LawBroken(f"{counted} bytes are counted {how}, and {len(data)} encoded")


@law(
    8,
    "Personal models and uploads stay within `limit`.",
    "prune to the count that `limit` states, by tensor and client, or state what is really kept",
)
def densities_stay_within_the_limit(problem: Problem) -> None:
    """Count what every client sends and uses after a run, of every tensor that has a limit."""
    with problem.simulating(ROUNDS) as made:
        server = made.server
        limits = [server.method.limit(server.task, info) for info in server.clients]
        if not any(most for limit in limits for most in limit.values()):
            raise DoesNotApply("its `limit` bounds no tensor")
        state = after(made, ROUNDS)
        ids = range(len(server.clients))
        checked = _models_are_within(made, state, [limit["use"] for limit in limits])
        for exchange in exchanges(made, state, ids):
            if exchange.round.kind != "adapt":
                sent = "upload" if exchange.round.kind == "train" else exchange.round.kind
                with at(**exchange.place):
                    checked += _within(exchange.answer()[0], limits[exchange.id].get(sent, {}))
        if not checked:
            raise LawBroken("`limit` names tensors that no model and no upload has")


def _models_are_within(made: Simulation, state: RunState, limits: list[Mapping[str, int]]) -> int:
    view = made.server.method.views[0]
    own = [index[:1] for index in made.federation.test]
    models = Evaluator.of(made).measure(state, view, own).models
    checked = 0
    for id, (model, limit) in enumerate(zip(models, limits, strict=True)):
        with at(kind="adapt", phase=(view, False), client=id):
            checked += _within(model, limit)
    return checked


def _within(message: Message, limit: Mapping[str, int]) -> int:
    """Hold every tensor of a message to its limit; return how many have one."""
    found = 0
    for name, part in message.items():
        for tensor, most in limit.items():
            if tensor in part.values:
                held = part.held(tensor)
                kept = part.values[tensor].numel() if held is None else int(held.sum())
                if kept > most:
                    text = f"{kept} entries are kept, and `limit` allows {most}"
                    raise LawBroken(text, Where(tensor=f"{name}/{tensor}", apart=kept - most))
                found += 1
    if "" in limit:
        masked = [part.held(name) for part in message.values() for name in part.keep]
        kept = sum(int(held.sum()) for held in masked if held is not None)
        if kept > limit[""]:
            text = f"{kept} masked entries are sent, and `limit` allows {limit['']}"
            raise LawBroken(text, Where(apart=kept - limit[""]))
        found += len(masked)
    return found
