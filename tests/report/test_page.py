"""The page: valid, self-contained, escaped, complete."""

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from masquerade.cost.bandwidth import bandwidth
from masquerade.report import render
from masquerade.report.page import About, page
from masquerade.results import Accuracy, ClientFigures, ClientMetric, Statistics, Summary
from tests.messages import Golden
from tests.report.invented import (
    accuracy,
    clients,
    corrupted,
    costs,
    curve,
    result,
    six_methods,
    spent,
)
from tests.support import raises

CONFIG = '[run]\nrounds = 60\nname = "<b>&"\n'


class Reader(HTMLParser):
    """Collects what a browser would see: open tags, faults, attributes, words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def six() -> str:
    """Return the page of six invented methods."""
    return page(six_methods(), About("Six", CONFIG, ["One note."]))


def test_tags_are_balanced_and_ids_are_unique(six: str) -> None:
    reader = Reader(six)
    assert reader.faults == []
    assert reader.open == []
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))


LIBRARY = "window.vegaEmbed = 0;"
"""What stands in for the large script where what is in it does not matter."""


@pytest.fixture(autouse=True, scope="module")
def _small_library() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "script", lambda: LIBRARY)
        yield


def test_the_page_makes_no_request(six: str) -> None:
    reader = Reader(six)
    loading = ("src", "href", "xlink:href", "srcset", "data", "action", "poster")
    targets = [value or "" for name, value in reader.attributes if name in loading]
    targets += re.findall(r"url\(([^)]*)\)", six)
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert not {"link", "img", "iframe", "object", "embed"} & set(reader.tags)
    assert "@import" not in six
    named = {value for name, value in reader.attributes if name.startswith("xmlns")}
    schemas = {f"https://vega.github.io/schema/vega-lite/v{render.LANGUAGE[0]}.json"}
    assert set(re.findall(r"https?://[^\"'\s<]+", six)) <= named | schemas


def test_only_the_scripts_of_the_page_may_run(six: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", six, re.S)
    assert [LIBRARY in text for text in scripts] == [True, False]
    (policy,) = re.findall(r'Policy" content="(.*?)"', six)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts]
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"


def test_a_page_without_figures_needs_no_library() -> None:
    found = result(history=(), per_client=None, accuracy=Accuracy(Statistics(80.0, 5.0)))
    bare = replace(found, costs=costs(spent(0.0, 0.0), seconds={}))
    text = page([bare], About("One", CONFIG))
    assert "<figure>" not in text
    assert LIBRARY not in text


def test_all_text_is_escaped() -> None:
    bad = "<script>alert('1')</script>&\""
    results = [
        result(title=bad, data=bad, costs=costs(adapt=spent())),
        result("other", data=bad, own=1.0),
    ]
    text = page(results, About(bad, CONFIG + bad, [bad]))
    reader = Reader(text)
    assert text.count("<script>") == 2
    assert text.count("alert(") == text.count("&lt;script&gt;alert(") + text.count(
        "\\u003cscript>alert("
    )
    assert reader.faults == []
    assert "".join(reader.words).count(bad) >= 8


def tile(text: str, label: str) -> list[str]:
    """What the headline says of a column."""
    words = Reader(text).words
    place = words.index(label)
    found = words[place + 1 : place + 4]
    return found[:-1] if found[-1] == "At 100 % shift" else found


def sure(low: float, high: float) -> str:
    return f"(95 % interval {low} to {high}, over clients)"


def test_the_headline_names_who_leads_only_where_an_interval_says_so(six: str) -> None:
    # FedAvg+FT and DM-PFL+ have the same clients.
    assert tile(six, "On own data") == [
        "No lead is separated",
        "86.2 to 94.1 %",
        "FedAvg+FT and DM-PFL+ are level (95 % interval 0.0 to 0.0, over clients)",
    ]
    # Every client of FedProx is 0.2 points ahead of its own with FedAvg.
    ahead = "0.2 points ahead of FedAvg (95 % interval 0.2 to 0.2, over clients)"
    assert tile(six, "At 100 % shift") == ["FedProx", f"84.4 % {sure(81.7, 87.1)}", ahead]
    two = page([result("a"), result("b", own=90.0)], About("Two", CONFIG))
    assert tile(two, "On own data") == [
        "B",
        f"90.0 % {sure(87.3, 92.7)}",
        "10.0 points ahead of A (95 % interval 10.0 to 10.0, over clients)",
    ]


def test_what_cannot_be_tested_is_no_finding() -> None:
    few = [replace(each, per_client=None) for each in (result("a"), result("b", own=90.0))]
    text = page(few, About("Two", CONFIG))
    assert tile(text, "On own data") == [
        "Cannot be tested: too few seeds and clients",
        "B 90.0\u00a0%, A 80.0\u00a0%",
    ]
    assert "No lead is separated" not in text


def test_the_metric_that_leads_is_that_of_the_whole_page() -> None:
    loss = replace(accuracy(0.4), better="lower", percent=False)
    further = {"balanced_accuracy": accuracy(64.0), "log_loss": loss}
    results = [result(name, metrics=further, lead="balanced_accuracy") for name in "ab"]
    results = [replace(each, per_client=with_metric(each, 64.0)) for each in results]
    text = page(results, About("Two", CONFIG))
    headings = re.findall(r'<th scope="col">(.*?)</th>', text)
    assert headings[:4] == ["Method", "Balanced accuracy", "Accuracy", "Log loss"]
    assert "Balanced accuracy on own data" in Reader(text).words
    section = text.partition("<h2>Clients</h2>")[2].partition("</section>")[0]
    titles = re.findall("<summary>(.*?)</summary>", section)
    assert [title.split(" of ")[0] for title in titles] == ["Balanced accuracy (%)", "Accuracy (%)"]
    axes = {"rounds": "Accuracy on own data (%)", "gains": "Gain of each client over A"}
    assert all(words in text for words in axes.values())
    assert "Balanced accuracy of each client on its own data (%)" in text


def with_metric(summary: Summary, own: float) -> ClientFigures:
    found = clients([own] * 20)
    metric = ClientMetric(found.own, found.shift, found.pooled)
    assert summary.per_client is not None
    return replace(summary.per_client, metrics={"balanced_accuracy": metric})


def test_one_method_leads_nobody() -> None:
    one = page([result()], About("One", CONFIG))
    assert tile(one, "On own data") == ["FEDAVG", f"80.0 % {sure(77.3, 82.7)}"]
    assert "<strong>" not in one


def test_the_page_has_all_sections_and_the_whole_configuration(six: str) -> None:
    assert re.findall("<h2>(.*?)</h2>", six) == [
        "Results",
        "Training",
        "Clients",
        "Shift",
        "Costs",
        "Global view",
        "Configuration",
        "How to read this",
    ]
    assert six.count("<figure>") == 8
    assert {CONFIG, "One note."} <= set(Reader(six).words)
    assert "<details><summary>" in six


def test_every_figure_has_a_title_and_a_caption(six: str) -> None:
    titles = re.findall(r'<figure><h3>(.*?)</h3><div class="plot" id=".*?"><svg', six)
    assert len(set(titles)) == six.count("<figure>") == six.count("<figcaption>")


def test_every_degree_stands_by_one_other_client_and_pooled(six: str) -> None:
    section = six.partition("<h2>Shift</h2>")[2].partition("</section>")[0]
    one, pooled = section.split("<details>")[1:]
    names = ("From one other client", "From all other clients")
    for table, name, figure in zip((one, pooled), names, (36.3, 37.3), strict=True):
        assert f"<summary>{name}: every degree</summary>" in table
        # Local falls from 91.3 by 55; pooled samples were invented to give one point more.
        assert f"<td>{figure}<small>" in table


def test_corruption_and_masks_are_shown_where_they_are(six: str) -> None:
    text = page([corrupted("a"), corrupted("b", own=90.0)], About("Two", CONFIG))
    assert re.findall("<h2>(.*?)</h2>", text)[3:6] == ["Shift", "Corruption", "Masks"]
    heat = text.partition("<h2>Corruption</h2>")[2].partition("</section>")[0]
    # From 50 for A under JPEG to 80 for B under fog; both kinds together give A 60.
    shades = [float(shade) for shade in re.findall(r"--heat: ([0-9.]+)", heat)]
    assert shades == [0.67, 1.0, 0.0, 0.33, 0.33, 0.67]
    assert re.findall(r'<th scope="row">(.*?)</th>', heat) == [
        "Fog",
        "JPEG compression",
        "All kinds",
    ]
    masks = text.partition("<h2>Masks</h2>")[2].partition("</section>")[0]
    assert masks.count("<figure>") == 3
    assert "<h3>A: 0.25</h3>" in masks
    assert "Rounds to 80&nbsp;%" in text
    assert Reader(text).faults == []
    assert not {"Corruption", "Masks"} & set(re.findall("<h2>(.*?)</h2>", six))


def test_the_global_view_stands_only_where_a_method_has_one(six: str) -> None:
    assert "Global view" not in page([result()], About("One", CONFIG))
    section = six.partition("<h2>Global view</h2>")[2]
    rows = re.findall(r'<th scope="row">(.*?)</th>', section)
    assert rows == ["DM-PFL", "DM-PFL+"]


def section_of(page: str, title: str) -> dict[str, dict[str, str]]:
    """Return a table of costs: method → heading → text."""
    section = page.partition(f"<summary>{title}</summary>")[2].partition("</table>")[0]
    headings = re.findall(r'<th scope="col">(.*?)</th>', section)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', section)
    return {
        name: dict(zip(headings[1:], re.findall("<td>(.*?)</td>", cells), strict=True))
        for name, cells in rows
    }


def test_costs_stand_in_both_conventions_without_empty_columns(six: str) -> None:
    sent = section_of(six, "Bytes, and the time they take")["DM-PFL"]
    # 0.9 MB at 10 MB/s, in thirty rounds.
    assert sent == {
        "MB down": "0.50",
        "MB up": "0.40",
        "Adapt: MB": "–",
        "Bytes at the start": "8",
        "s to send, a round": "0.003",
        "s to send, in all": "0.09",
    }
    # FedAvg+FT was invented with 20,000 bytes before use.
    assert section_of(six, "Bytes, and the time they take")["FedAvg+FT"]["Adapt: MB"] == "0.02"
    spent = section_of(six, "Operations")["DM-PFL"]
    assert spent["GFLOP masked"] == "1.30"
    assert (spent["GFLOP executed"], spent["Adapt: GFLOP"]) == ("3.50", "–")
    assert section_of(six, "On the client&#x27;s device")["DM-PFL"]["Parameters"] == "12,345"
    assert section_of(six, "The run")["FedAvg"]["s commits"] == "0.30"
    papers = section_of(six, "As papers count")["DM-PFL"]
    assert papers == {
        "Papers: MB": "0.40",
        "Papers: MB,&nbsp;%": "40",
        "Papers: GFLOP": "1.60",
        "Papers: GFLOP,&nbsp;%": "64",
    }


def test_operations_by_phase_and_layer_are_there_to_unfold(six: str) -> None:
    details = six.partition("<summary>Operations by phase and layer</summary>")[2]
    words = "".join(f'<td class="words">{word}</td>' for word in ("train", "fc"))
    assert f"{words}<td>3.00</td><td>2.00</td><td>3.50</td>" in details


def test_a_bandwidth_is_named_where_its_times_stand() -> None:
    slow = page([result()], About("One", CONFIG), rate=bandwidth("1Mbps:2Mbps"))
    assert slow.count("1 Mbps down, 2 Mbps up") == 2
    # 1.2 MB down in 9.6 s, 1.1 MB up in 4.4 s.
    assert section_of(slow, "Bytes, and the time they take")["FEDAVG"]["s to send, in all"] == "14"


def test_the_same_results_give_the_same_page(six: str) -> None:
    assert page(six_methods(), About("Six", CONFIG, ["One note."])) == six


def test_results_that_do_not_belong_together_make_no_page(golden: Golden) -> None:
    with raises("E305") as refusal:
        page([result(), result("b", clients=3)], About("Two", CONFIG))
    golden(refusal.value)


def test_a_page_of_one_look_says_why_it_has_no_figure_by_round() -> None:
    once = page([result(history=curve({3: 80.0}))], About("One", CONFIG))
    assert "Own data against rounds" not in once
    assert "There is no figure by round, because models were evaluated once" in once
    assert "There is no figure by round" not in page([result()], About("More", CONFIG))
