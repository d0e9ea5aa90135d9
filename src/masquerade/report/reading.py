"""What the terms of a page mean: its last section."""

from masquerade.report import tables
from masquerade.report.html_elements import element

_READING = {
    "Own data": "The mean over clients, each tested on its own test data. Beside further metrics"
    " the column has the name of the one that leads.",
    tables.BY_SAMPLES: "The mean over all test samples: a client counts by how many it has.",
    "Bottom decile": "Nine clients in ten do at least this well.",
    "Majority class": "Each client answers the most frequent label of its own training samples,"
    " without a model. A method that is not above it has learned nothing that helps.",
    "100 % shift": "So much of each client's test data is replaced by one other client's.",
    "All shifts": "The mean over all degrees of shift, 0 % included.",
    "Pooled shifts": "The same, with samples of all other clients in the place of one client's.",
    "Corrupt images": "The mean over kinds and severities of corruption of clients' own images.",
    "Novel clients, Gap": "Clients that took no part in training, and what they lack of the others'"
    " mean on own data.",
    "Setup, Adapt": "What a client is sent and does once before training, and before its model is"
    " used; both are counted apart from training.",
    "GFLOP": "Only products (matrix products and convolutions) are counted.",
    "Density": "The share of the model's parameters that a client's own model keeps.",
    "±, parentheses": "How different clients are, and how sure the mean is: half of its 95 %"
    " interval, over three or more seeds by Student's t. Of fewer it is a bootstrap over clients,"
    " which says nothing about other trainings or partitions.",
    "Cannot be tested": "A paired interval takes three seeds, or ten clients. With fewer, figures"
    " may differ by chance, and no row is said to lead.",
    "Bold": "The best of its column, if a paired 95 % interval separates it from every other row:"
    " that of the differences between trainings of the same seed or, with fewer than three seeds,"
    " between the same clients. Where nothing is bold, no lead is separated.",
}


def reading() -> str:
    """Return the terms, each with its meaning."""
    terms = "".join(element("dt", term) + element("dd", text) for term, text in _READING.items())
    return f"<dl>{terms}</dl>"
