"""The figure of a partition: every cell is a client's share of a class."""

import xml.etree.ElementTree as ET
from dataclasses import replace

from masquerade.report.client_plots import CELLS
from masquerade.report.labels import ClientCounts, LabelCounts, over_classes
from masquerade.report.render import file_of

# Two clients and three classes; the second client has no training samples.
COUNTS = LabelCounts(
    "invented & small",
    3,
    (
        ClientCounts(8, 2, 2, classes=(6, 0, 2)),
        ClientCounts(0, 0, 1, classes=(0, 0, 0)),
        ClientCounts(4, 1, 1, classes=(0, 4, 0)),
    ),
)


def test_a_cell_is_a_client_s_samples_of_a_class_of_all_that_it_has() -> None:
    rows = over_classes(COUNTS).spec["data"]["values"]
    cells = {(row["client"], row["label"]): row["samples"] / row["of"] for row in rows}
    assert cells == {("0", "0"): 0.75, ("0", "2"): 0.25, ("2", "1"): 1.0}


def test_its_file_names_its_data_and_is_always_the_same() -> None:
    svg = file_of(over_classes(COUNTS), "svg")
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == "Classes of invented & small by client"
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Client", "Classes of invented & small by client", "0", "1", "2"} <= words
    assert svg == file_of(over_classes(COUNTS), "svg")
    assert file_of(over_classes(COUNTS), "png").startswith(b"\x89PNG")


def test_classes_and_clients_have_their_names() -> None:
    named = tuple(replace(one, name=f"site {id} $x$") for id, one in enumerate(COUNTS.clients))
    counts = replace(COUNTS, clients=named, class_names=("no <b>", "yes", "unknown"))
    root = ET.fromstring(file_of(over_classes(counts), "svg"))
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"no <b>", "yes", "unknown", "site 0 $x$", "site 2 $x$"} <= words


def test_of_very_many_clients_the_first_are_drawn() -> None:
    many = replace(COUNTS, clients=COUNTS.clients[:1] * CELLS)
    chart = over_classes(many)
    assert len({row["client"] for row in chart.spec["data"]["values"]}) == CELLS // 3
    assert f"The first {CELLS // 3:,} of {CELLS:,} clients are drawn." in chart.caption
