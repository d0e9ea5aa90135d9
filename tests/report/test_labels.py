"""The figure of a partition: every cell is a client's share of a class."""

import base64
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
from PIL import Image

from masquerade.report.labels import NAMED, ClientCounts, LabelCounts, over_classes

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


def test_a_cell_is_as_dense_as_the_share_of_its_class() -> None:
    svg = over_classes(COUNTS)
    (found,) = re.findall(r"data:image/png;base64,([^\"]+)", svg)
    cells = np.asarray(Image.open(io.BytesIO(base64.b64decode(found))).convert("RGBA"))[..., 3]
    shares = np.array([[0.75, 0, 0], [0, 0, 1], [0.25, 0, 0]])
    assert np.abs(cells / 255 - shares).max() < 0.01


def test_it_is_one_svg_that_names_its_data_and_is_always_the_same() -> None:
    svg = over_classes(COUNTS)
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == "Classes of invented & small by client"
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Client", "Samples", "train", "validation", "test"} <= words
    assert "Classes of invented & small by client" in words
    assert svg == over_classes(COUNTS)


def test_classes_and_clients_have_their_names_where_there_is_room() -> None:
    svg = "{http://www.w3.org/2000/svg}text"

    def words(counts: LabelCounts) -> set[str | None]:
        return {text.text for text in ET.fromstring(over_classes(counts)).iter(svg)}

    named = tuple(replace(one, name=f"site {id} $x$") for id, one in enumerate(COUNTS.clients))
    counts = replace(COUNTS, clients=named, class_names=("no <b>", "yes", "unknown"))
    expected = {"no <b>", "yes", "unknown", "site 0 $x$", "site 2 $x$"}
    assert expected <= words(counts)
    assert not expected & words(replace(counts, clients=named * NAMED, class_names=()))
