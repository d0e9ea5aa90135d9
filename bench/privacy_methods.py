"""Which kinds of privacy fit which methods: found by running each, never typed.

python bench/privacy_methods.py     # writes docs/results/privacy-methods.md, in seconds
"""

from pathlib import Path

import torch

from masquerade.config.resolve import TrainingSpec
from masquerade.config.settings import Compute, Evaluate, Privacy, Train
from masquerade.core.round import ClientInfo
from masquerade.core.task import Task
from masquerade.errors import MasqueradeError
from masquerade.laws.toy import federation, network_of
from masquerade.methods import METHODS
from masquerade.report.listing import Listing, markdown_table
from masquerade.simulation.accountant import check_stages
from masquerade.simulation.blind_sum import reading
from masquerade.simulation.build import context_of

PAGE = Path(__file__).resolve().parents[1] / "docs/results/privacy-methods.md"
ROUNDS = 12
"""How many rounds a run has: enough for one of every phase."""
HEADINGS = ("method", "DP-SGD at clients", "noise at the server", "sums that would do", "beside")

TEXT = """# Which privacy fits which method

| column | says |
|---|---|
| DP-SGD at clients | `privacy.unit="sample"` covers all that a client sends |
| noise at the server | `privacy.unit="client"`: a round takes one mean of numbers, and no more |
| sums that would do | what secure aggregation would have to add up over clients |
| beside | what stands in the way, first of all |

- Each method was run as it is by default, view by view, on the toy of the laws.
- A step that is not `sgd_step` is seen in its stages.
- What the server needs is seen by running `aggregate` on uploads that differ in one client, while
  `cohort.average` says nothing of it. Votes that a method counts by itself are seen too.
- `values, masks` are two dense sums: of what clients hold, and of where they hold it.

`python bench/privacy_methods.py` wrote this page.

{table}
"""


def rows() -> list[list[str]]:
    """Return a row for every entry of METHODS."""
    found = []
    for entry in METHODS.values():
        method = entry.method(**dict(entry.settings))
        task, data = Task(network_of(method)).with_example(federation().x), federation()
        spec = TrainingSpec(
            method=method,
            task=task,
            federation=data,
            train=Train(model="", rounds=ROUNDS, batch_size=2),
            evaluate=Evaluate(),
            compute=Compute(),
            seed=1,
            views=(entry.view,),
            privacy=Privacy(unit="sample"),
        )
        read = reading(context_of(spec, task, data), ClientInfo(0, 4, 0))
        why = ""
        try:
            check_stages(method, task, spec)
        except MasqueradeError as error:
            why = _short(str(error))
        sample = "yes" if not why else "no"
        server = "no" if read.needs else ("–" if not read.averages else "yes")
        beside = "; ".join(filter(None, [why, *read.needs[:1]]))
        found.append([entry.title, sample, server, read.sums, beside])
    return found


def _short(refusal: str) -> str:
    """Return what a refusal says of a method, without its name and advice."""
    text = refusal.removeprefix("E202 ").partition(", which")[0].partition(": its")[0]
    return text.partition(", ")[2] or text


def write(page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(
        TEXT.format(table=markdown_table(Listing("", HEADINGS, rows()))), encoding="utf-8"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    write()
