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
    """Say in a line what left clients, for a terminal; methods of which the same holds share it."""
    alike: dict[str, dict[str, None]] = {}
    for each in sheets:
        names = dict.fromkeys(
            kind
            for line in each.lines
            if line.direction == UP
            for kind in line.kinds
            if kind != "header"
        )
        text = f"{', '.join(names)} left clients; differential privacy: {each.epsilon}"
        alike.setdefault(text, {})[each.title] = None
    if len(alike) == 1:
        return next(iter(alike))
    return "\n".join(f"{', '.join(titles)}: {text}" for text, titles in alike.items())
