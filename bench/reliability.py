"""Write the page of what was done to the library, and what came of it.

    MASQUERADE_FIGURES=1 make drill     # drills that pass write a file each, into its folder
    python bench/reliability.py         # writes the page of these files

Nothing on it is typed but bars: a figure without a file is said to be missing.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from masquerade.reproduce.page import wrapped

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "reliability.md"
FOLDER = PAGE.with_suffix("")
Record = dict[str, Any]

HEAD = "| what | bar | counted | day, commit |\n|---|--:|--:|---|"
TEXT = """# Reliability

What was done to the library on purpose, how often, and what came of it.

```sh
MASQUERADE_FIGURES=1 make drill            # drills that pass write files into the folder
python bench/reliability.py                # writes this page from them
```

The files are in [`reliability`](reliability), one per drill. A drill that meets a fault writes
none, so what is counted here met none, at the commit that is named. Long ones are done in pieces,
and write how far they came. A short form of each runs in `make test`.

{table}

{missing}

## What was counted

{details}

## Elsewhere

False updates, and what defends against them: [attacks](attacks.md). What masks tell of labels:
[mask privacy](mask-privacy.md). Who is trusted with what: [security](../../SECURITY.md).
"""


@dataclass(frozen=True)
class Bar:
    """Something that is done to the library, and how often it has to be."""

    title: str
    least: int | str
    """How often, at least; a word where it is not a number."""
    counted: str
    """The figure that says how often it was; those of all its files are added up."""
    files: tuple[str, ...]
    """The files of its drills, without a suffix."""
    claim: str
    """What a drill passes by."""


BARS = (
    Bar(
        "`kill -9` at random instants",
        1000,
        "kills",
        ("kills-methods", "kills-engines", "kills-comparison"),
        "Every method, both engines, processes and a comparison are killed and resumed. What is "
        "finished equals, in every bit, what nobody disturbed.",
    ),
    Bar(
        "Failing steps of a commit",
        "every step",
        "steps at which it came",
        (
            *("io-error", "io-no-space", "io-short"),
            *("io-death-before", "io-death-in-the-middle", "io-death-after"),
        ),
        "Every open, write, sync and rename of a commit and its results fails in turn. The old "
        "state is left, or the new one. Of a short write the disk takes half and says so.",
    ),
    Bar(
        "Failing steps of other writers",
        "every step",
        "steps at which it came",
        (
            *("io-a-dataset-of-the-cache", "io-an-exported-bundle", "io-an-exported-file"),
            *("io-a-report-page", "io-a-saved-result", "io-the-results-of-a-comparison"),
            *("io-a-clients-record", "io-a-clients-state"),
        ),
        "The same of what is no commit. Results of a comparison may be gone before the new ones "
        "are there, and whoever reads them is told. A client whose state could not be written is "
        "asked again, and answers alike.",
    ),
    Bar(
        "Power that fails",
        5000,
        "failures",
        ("power",),
        "After each call of a commit, the disk has all that was synced, any part of what was not, "
        "and of each folder its first changes. That is the old state or the new one; the new one "
        "once the commit has returned.",
    ),
    Bar(
        "Full disk, levels",
        50,
        "levels",
        ("full-disk",),
        "A run on ever larger disks stops with E501, and goes on to the same bits once there is "
        "space.",
    ),
    Bar(
        "Ctrl-C and SIGTERM at random instants",
        50,
        "stops",
        ("signals",),
        "The command ends in less than 5 s, with the status that is documented (130, 75) and the "
        "words by which it is resumed. What is finished equals, in every bit, what nobody "
        "disturbed.",
    ),
    Bar(
        "Damaged folders of runs",
        10_000,
        "damaged folders",
        ("damage-run",),
        "Bits are turned, files cut, zeroed, swapped, deleted, or taken from another run. All who "
        "read results are told, or it was of no use any more. Of twenty damaged folders one is "
        "resumed: it is refused, or ends in the results of the undisturbed run; lines of metrics "
        "may be lost, and are told.",
    ),
    Bar(
        "Damaged folders of comparisons",
        2000,
        "damaged folders",
        ("damage-comparison",),
        "The same, of a comparison and all its runs.",
    ),
    Bar(
        "Damaged folders of federations",
        2000,
        "damaged folders",
        ("damage-federation",),
        "The same, of the server's folder and of a client's.",
    ),
    Bar(
        "Hostile updates",
        300,
        "updates",
        ("hostile-updates",),
        "A round with the update equals, in every bit, the round without that client. Finite lies "
        "cannot be told so: what defences make of them is on the page of attacks.",
    ),
    Bar(
        "Mutated messages",
        5_000_000,
        "messages",
        ("messages",),
        "Each is refused with E605, or is the only way to write what it says. Half of them have a "
        "checksum that fits. Each has 30 s and 2 GiB of addresses, and would be a fault beyond.",
    ),
    Bar(
        "Mutants of the decoder that short tests kill, %",
        95,
        "killed, %",
        ("mutants",),
        "One operator, number, condition or refusal of the decoder is changed at a time. Mutants "
        "that no test can notice are in the script, each with the reason, and do not count.",
    ),
    Bar(
        "Mutated bundles and inputs",
        1_000_000,
        "inputs",
        ("bundles", "files"),
        "Exported models and what they are asked about; and what datasets, configurations, results "
        "and questions of a federation are read from. Each is read, or refused with a code. Time "
        "and memory are bounded.",
    ),
    Bar(
        "Broken configurations",
        1000,
        "configurations",
        ("configurations",),
        "Each is refused in less than two seconds, with the key, and what there is, what fits or "
        "what to do.",
    ),
    Bar(
        "Runs with anything in any order",
        200,
        "runs",
        ("any-order",),
        "Rounds, kills, resumes, damage, copies, exports and cleaning up, up to 30 steps of a run. "
        "What is read is a state that was committed, in every bit, or refused with a code; damage "
        "is told; what is finished, and a model that is exported, equals what nobody disturbed.",
    ),
    Bar(
        "Hostile names",
        1000,
        "names",
        ("names",),
        "Each goes through every door that makes a path of a name: of runs, views, clients, "
        "datasets, columns, federations, archives and bundles. It is refused, or what it names "
        "lies inside: nothing is opened for writing, made, moved or removed outside the folder, as "
        "Python's audit and the tree around it tell.",
    ),
    Bar(
        "Rounds of one run",
        10_000,
        "rounds",
        ("soak",),
        "Memory grows by less than 20 MB after round 100; descriptors and disk do not grow.",
    ),
    Bar(
        "Rounds of a federation under chaos",
        50,
        "rounds",
        ("chaos",),
        "30 % of clients are killed or cut off per round, and the server is killed 20 times. The "
        "end equals the replay.",
    ),
)


def records(folder: Path) -> dict[str, Record]:
    """Read what drills wrote."""
    files = sorted(folder.glob("*.json"))
    return {each.stem: json.loads(each.read_text(encoding="utf-8")) for each in files}


def page(folder: Path = FOLDER) -> str:
    """Return the page."""
    found = records(folder)
    known = [name for bar in BARS for name in bar.files]
    missing = [name for name in known if name not in found]
    said = f"Not counted yet: {', '.join(f'`{name}`' for name in missing)}."
    details = [_detail(bar.title, bar.claim, bar.files, found) for bar in BARS]
    if others := [name for name in found if name not in known]:
        details.append(_detail("Further drills", "No bar was set for them.", others, found))
    return TEXT.format(
        table="\n".join([HEAD, *(_row(bar, found) for bar in BARS)]),
        missing=wrapped(said) if missing else "Every drill has its file.",
        details="\n\n".join(details),
    )


def _row(bar: Bar, found: dict[str, Record]) -> str:
    here = [found[name] for name in bar.files if name in found]
    count = sum(int(each["figures"].get(bar.counted, 0)) for each in here)
    counted = f"{count:,}" if here else "missing"
    least = bar.least if isinstance(bar.least, str) else f"{bar.least:,}"
    short = here and not isinstance(bar.least, str) and count < bar.least
    made = _unique(f"{each['date']}, {each['commit']}" for each in here)
    told = f"{counted}{', short of it' if short else ''}"
    return f"| {bar.title} | {least} | {told} | {'; '.join(made)} |"


def _detail(title: str, claim: str, names: Iterable[str], found: dict[str, Record]) -> str:
    here = {name: found[name] for name in names if name in found}
    lines = [f"### {title}", "", wrapped(claim), ""]
    if not here:
        return "\n".join([*lines, "Missing."])
    commands = _unique(each["command"] for each in here.values())
    lines += ["```sh", *commands, "```", "", "| file | figures |", "|---|---|"]
    lines += [f"| [`{n}`](reliability/{n}.json) | {_told(r['figures'])} |" for n, r in here.items()]
    return "\n".join(lines)


def _told(figures: Record) -> str:
    return ", ".join(
        f"{name}: {value:,}" if isinstance(value, (int, float)) else f"{name}: {value}"
        for name, value in figures.items()
    )


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
