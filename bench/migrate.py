"""Write settings and results of 0.1, and of earlier days of 0.2, in the words and forms of 0.2.

    python bench/migrate.py runs docs/results

TOML files are changed line by line, so that comments stay; results (JSON) by their keys. Clients'
figures (npz) become counts, and what no page of a table shows is left out of the result beside
them. Numbers are not touched.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from masquerade.core.old_words import RENAMED
from masquerade.reproduce import jobs
from masquerade.reproduce.record import RowRecord
from masquerade.results import ClientFigures, Summary
from masquerade.results.summary import SCHEMA

VALUES = {"message_dtype": {"full": "same"}}
"""Values that have another name, by the new name of their setting."""


def words(section: str) -> dict[str, str]:
    """Return what settings of a section were called, and are."""
    family = RENAMED.get(section.split(".")[0], {}) if section.startswith("method.") else {}
    return family | RENAMED.get(section, {})


def toml(text: str) -> str:
    """Rename the keys of a TOML file, the names of settings in its lists, and those in comments."""
    section, lines = "", []
    for line in text.split("\n"):
        if found := re.match(r"\[([\w.]+)\]", line):
            section = re.sub(r"^(quick|search\.over)\.", "", found[1])
        known = words(section)
        if found := re.match(r"(\w+)(\s*=\s*)(.*)", line):
            key = known.get(found[1], found[1])
            rest = found[3]
            for old, new in VALUES.get(key, {}).items():
                rest = rest.replace(f'"{old}"', f'"{new}"')
            if section == "search" and key == "settings":
                for old, new in RENAMED["method"].items():
                    rest = rest.replace(f'"{old}"', f'"{new}"')
            line = f"{key}{found[2]}{rest}"
        elif line.startswith("#   "):
            # A try of a search, a method and what it set; or a setting to type.
            for old, new in RENAMED["method"].items():
                line = re.sub(rf"\b{old}\b", new, line)
            for family in ("train", "compute"):
                for old, new in RENAMED[family].items():
                    line = line.replace(f"{family}.{old}=", f"{family}.{new}=")
        lines.append(line)
    return "\n".join(lines)


def tables(found: dict[str, Any], section: str = "") -> dict[str, Any]:
    """Rename the keys of nested tables."""
    made = {}
    for key, value in found.items():
        new = words(section).get(key, key)
        if isinstance(value, dict):
            value = tables(value, f"{section}.{key}" if section else key)
        made[new] = VALUES.get(new, {}).get(value, value) if isinstance(value, str) else value
    return made


def summary(old: dict[str, Any]) -> dict[str, Any]:
    """Put a summary of 0.1, which has no schema, into the form that it has now."""
    if "schema" in old or "bytes" not in old:
        return old
    new = dict(old)
    shared = new["accuracy"].pop("global", None)
    new["costs"] = {
        "train": {key: new.pop(key) for key in ("bytes", "parts", "flops", "paper")},
        "storage": new.pop("storage"),
        "initial": new.pop("initial"),
        **{key: new.pop(key) for key in ("setup", "adapt") if key in new},
        "layers": new.pop("layers"),
        "seconds": new.pop("time"),
        "memory": new.pop("memory"),
    }
    new["model"] = {key: new.pop(key) for key in ("parameters", "kept", "density")}
    new["participation"] = {
        "mean": new.pop("participations"),
        "never_sampled": new.pop("never_sampled"),
        "never_heard": new.pop("never_heard"),
    }
    # The total is the sum of the parts.
    del new["seconds"]
    if shared is not None:
        new["global_view"] = shared
    if new["diverged"] is None:
        del new["diverged"]
    return {"schema": SCHEMA, **new}


def result(text: str) -> str:
    """Rename the settings of a result, and give its summary the form of today."""
    found, before = json.loads(text), json.loads(text)
    if not isinstance(found, dict):
        return text
    if isinstance(found.get("result"), dict):
        found["result"] = summary(found["result"])
    if "settings" in found:
        found["settings"] = tables(found["settings"])
    made = found.get("made")
    if isinstance(made, dict) and "compute" in made:
        made["compute"] = tables(made["compute"], "compute")
    for run in found.get("runs", []):
        # A reading is some settings of DM-PFL.
        if "reading" in run:
            run["reading"] = tables(run["reading"], "method.dmpfl")
    return text if found == before else json.dumps(found, indent=1) + "\n"


def clients(path: Path) -> bool:
    """Rewrite clients' figures that are no counts, and the result beside them; tell if it did."""
    with np.load(path, allow_pickle=False) as held:
        arrays = {key: held[key] for key in held.files}
    beside = path.with_suffix(".json")
    if "own" not in arrays or not beside.is_file():
        return False
    record = RowRecord.from_json(json.loads(beside.read_text(encoding="utf-8")))
    jobs.write(beside, replace(record, result=_with_clients(record.result, arrays)))
    return True


def _with_clients(found: Summary, arrays: dict[str, Any]) -> Summary:
    """Put figures client by client into a summary, also of rules."""

    def figures(start: str) -> ClientFigures:
        own = {key[len(start) :]: each for key, each in arrays.items() if key.startswith(start)}
        by_degree = {
            kind: {
                str(degree): _listed(row)
                for degree, row in zip(own[f"{kind}_degrees"], own[kind], strict=True)
            }
            for kind in ("shift", "pooled")
        }
        ids, samples, tests = (tuple(own[key].tolist()) for key in ("ids", "samples", "tests"))
        names = tuple(map(str, own.get("names", ())))
        return ClientFigures(ids, samples, _listed(own["own"]), names, tests, **by_degree)

    rules = {
        name: replace(rule, per_client=figures(f"rules/{name}/"))
        if f"rules/{name}/own" in arrays
        else rule
        for name, rule in found.rules.items()
    }
    return replace(found, per_client=figures(""), rules=rules)


def _listed(row: Any) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(one) else float(one) for one in row)


def main(roots: list[str]) -> None:
    """Rewrite all TOML, JSON and npz files under some folders."""
    for path in sorted(each for root in roots for each in Path(root).rglob("*")):
        if path.suffix in (".toml", ".json"):
            old = path.read_text(encoding="utf-8")
            new = toml(old) if path.suffix == ".toml" else result(old)
            if new != old:
                path.write_text(new, encoding="utf-8")
                print(path)
        if path.suffix == ".npz" and clients(path):
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
