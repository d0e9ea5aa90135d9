"""Clients in a summary: by number, or by the name that the data give them."""

from masquerade.errors import MasqueradeError, listed, nearest
from masquerade.simulation.state import Record


def place_of(summary: Record, client: int | str) -> int:
    """Return the place of a client, given by number or name, in what a summary lists of clients.

    A text is a name before it is a number, and never a number where names are numbers as well:
    nobody is to get another's model.
    """
    ids, names = (summary["per_client"].get(key, []) for key in ("ids", "names"))
    novel = summary.get("novel", {})
    called = [*names, *novel.get("names", [])]
    if client in names:
        return int(names.index(client))
    given = client
    if isinstance(given, str) and given.isdecimal() and not any(map(str.isdecimal, called)):
        given = int(given)
    if given in ids:
        return int(ids.index(given))
    near = nearest(str(client), names)
    calls = f"names {listed(names)}" if names else ""
    numbers = f"numbers {listed(ids)}"
    text = f"there is no model of client `{client}`{near}; those with one have the"
    if given in novel.get("ids", []) or client in novel.get("names", []):
        text = f"client `{client}` was kept out of training, and its model was not kept; "
        text += "train with it (no `novel`), or take a client with a model; they have the"
    raise MasqueradeError("E202", f"{text} {' and the '.join(filter(None, (numbers, calls)))}")
