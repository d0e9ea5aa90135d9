"""Write a page of results from a comparison's directory: nothing on it is typed.

masquerade compare --config runs/digits-all.toml --out out/digits-all
python bench/results.py out/digits-all docs/results/digits.md
"""

import argparse
import datetime
from pathlib import Path

import torch

from masquerade.config import toml as configuration
from masquerade.report import markdown
from masquerade.report.tables import by_method, heading
from masquerade.reproduce.page import wrapped
from masquerade.storage.results import read_results

TEXT = """# {title}

{made}

```sh
{command}
python bench/results.py {given} {page}
```

Training took {minutes:.1f} minutes, one training after another. A training that several rows are
views of is counted once. Learning rates were chosen on validation data, from one grid for every
training. [The log](../log.md) says how, and where that went wrong.

{table}

## Settings

```toml
{config}```
"""


def main(given: Path, page: Path, command: str) -> None:
    results = read_results(given)
    seconds = {(result.costs.total_seconds, result.seed) for result in results}
    config = configuration.parse(configuration.read_file(given / "config.toml"))
    today = datetime.date.today().isoformat()
    *rows, notes = markdown(results).rstrip().split("\n")
    text = TEXT.format(
        title=f"{results[0].data}: {len(by_method(results))} methods side by side",
        made=wrapped(f"{heading(results)}. Made on {today} with torch {torch.__version__} by"),
        command=command.format(given=given),
        given=given,
        page=page,
        minutes=sum(second for second, _ in seconds) / 60,
        table="\n".join([*rows, wrapped(notes)]),
        config=configuration.dump(config),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("given", type=Path, help="the directory of a comparison")
    parser.add_argument("page", type=Path, help="the page to write")
    parser.add_argument(
        "--command",
        default="masquerade compare --config runs/digits-all.toml --out {given}",
        help="the command that made the directory",
    )
    arguments = parser.parse_args()
    main(arguments.given, arguments.page, arguments.command)
