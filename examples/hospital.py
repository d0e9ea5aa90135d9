"""Write `hospital.csv`: a made-up table of six hospitals, with the faults that real tables have.

    python examples/hospital.py [FILE]

Fields are separated by `;`, the text is Latin-1, values are missing, wards and sexes are words, and
one patient in four has the outcome. What the outcome depends on differs from site to site, so that
one model does not serve all of them.
"""

import sys
from pathlib import Path

import numpy as np

SITES = {"Aachen": 260, "Brügge": 220, "Colmar": 180, "Dänholm": 150, "Évian": 120, "Fürth": 90}
"""Patients by site."""
WARDS = ("Chirurgie", "Innere", "Gynäkologie")
MISSING = 0.06
"""The share of values that nobody wrote down."""
OUTCOMES = 0.25


def patients(site: int, count: int, rng: np.random.Generator) -> list[dict[str, str]]:
    """Draw the patients of a site."""
    age, pressure = rng.normal(62, 14, count), rng.normal(128, 18, count)
    creatinine, sex = rng.lognormal(0.1, 0.4, count), rng.integers(0, 2, count)
    ward = rng.integers(0, len(WARDS), count)
    # Age counts everywhere; blood pressure has another sign in every second site.
    risk = (age - 62) / 14 + (-1) ** site * 1.5 * (pressure - 128) / 18 + 0.8 * (ward == site % 3)
    risk += np.log(creatinine) + 0.5 * rng.normal(size=count)
    outcome = risk > np.quantile(risk, 1 - OUTCOMES)
    columns = {
        "id": [f"{site}-{row:04d}" for row in range(count)],
        "age": [f"{value:.0f}" for value in age],
        "pressure": [f"{value:.0f}" for value in pressure],
        "creatinine": [f"{value:.2f}" for value in creatinine],
        "sex": ["fm"[value] for value in sex],
        "ward": [WARDS[value] for value in ward],
        "outcome": ["yes" if value else "no" for value in outcome],
    }
    for name in ("pressure", "creatinine", "sex", "ward"):
        for row in np.flatnonzero(rng.random(count) < MISSING):
            columns[name][row] = ""
    return [
        {name: values[row] for name, values in columns.items()} | {"site": list(SITES)[site]}
        for row in range(count)
    ]


def main(path: Path) -> None:
    """Write the table, its rows in no order."""
    rng = np.random.default_rng(7)
    rows = [row for site, count in enumerate(SITES.values()) for row in patients(site, count, rng)]
    rng.shuffle(rows)
    lines = [";".join(rows[0]), *(";".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")
    print(f"{path}: {len(rows)} patients of {len(SITES)} sites")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospital.csv"))
