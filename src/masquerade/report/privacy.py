"""Privacy sheets as people read them: a table of what left a client, and what is guaranteed."""

from collections.abc import Sequence

from masquerade.report.listing import Listing, markdown_table
from masquerade.results import Leaving, PrivacySheet
from masquerade.results.privacy import UP

HEADINGS = ("When", "What", "Holds", "Direction", "To", "Bytes per client", "Made of at least", "ε")
LISTED = 4
"""Tensors or figures, at most, that a table names."""

SEEN = (
    "The server sees every upload of every client by itself: nothing is encrypted against it. What"
    " it sends to clients is made of the uploads of at least so many of them; of parts with masks a"
    " number may be that of the only client that holds it, unless the settings ask for more."
)
SIMULATED = "Clients were simulated: nothing crossed a network, and this is what would leave them."
FIGURES = "Facts, sums, counts and figures are told as they are, without noise."


def body(sheet: PrivacySheet) -> list[list[str]]:
    """Return the rows of a sheet as texts."""
    return [
        [
            each.when,
            each.name,
            _holds(each),
            each.direction,
            each.to,
            "not counted" if each.bytes is None else f"{each.bytes:,.0f}",
            f"{each.contributors} client{'s' * (each.contributors != 1)}",
            "none" if each.epsilon is None else f"{each.epsilon:.3g}",
        ]
        for each in sheet.lines
    ]


def _holds(line: Leaving) -> str:
    texts = []
    for kind, names in line.kinds.items():
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        listed = f" ({', '.join(names[:LISTED])}{more})" if names else ""
        texts.append(f"{kind}{listed}")
    return "; ".join(texts) or "nothing"


def notes(sheet: PrivacySheet) -> list[str]:
    """Say what holds for all lines of a sheet."""
    found = [f"Differential privacy (ε): {sheet.epsilon}.", SEEN, FIGURES]
    made = sheet.guarantee
    if made is not None:
        found[0] += (
            f" Noise is {made.noise_multiplier:.4g} times the bound of {made.bound:g}, from the"
            " operating system: this run cannot be repeated bit for bit."
        )
    return [*found, SIMULATED] if sheet.simulated else found


def heading(sheet: PrivacySheet) -> str:
    """Name the training of a sheet."""
    return f"{sheet.title}, seed {sheet.seed}"


def markdown(sheets: Sequence[PrivacySheet]) -> str:
    """Return sheets as Markdown."""
    parts = [
        "\n\n".join(
            [
                f"## {heading(each)}",
                "\n".join(f"- {note}" for note in notes(each)),
                markdown_table(Listing("", HEADINGS, body(each))),
            ]
        )
        for each in sheets
    ]
    return "\n\n".join(["# What left clients", *parts]) + "\n"


def line(sheets: Sequence[PrivacySheet]) -> str:
    """Say what left clients, for a terminal: in one line of all trainings of which it is the same.

    Seeds are named where they differ.
    """
    texts = [(each, _left(each)) for each in sheets]
    of_title: dict[str, set[str]] = {}
    for each, text in texts:
        of_title.setdefault(each.title, set()).add(text)
    whose: dict[str, list[str]] = {}
    for each, text in texts:
        name = each.title
        name += "" if len(of_title[each.title]) == 1 else f" (seed {each.seed})"
        names = whose.setdefault(text, [])
        if name not in names:
            names.append(name)
    if len(whose) == 1:
        return "".join(whose)
    return "\n".join(f"{', '.join(names)}: {text}" for text, names in whose.items())


def _left(sheet: PrivacySheet) -> str:
    """Say what kinds left a client, and what is guaranteed of them."""
    ups = [each.kinds for each in sheet.lines if each.direction == UP]
    kinds = dict.fromkeys(kind for each in ups for kind in each if kind != "header")
    return f"{', '.join(kinds)} left clients; differential privacy: {sheet.epsilon}"
