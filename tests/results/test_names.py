"""Results without names: no name that data gave is left anywhere in them."""

import json
from dataclasses import replace

from masquerade.results import Baseline, RuleFigures
from masquerade.results.names import without_names
from tests.report.invented import clients, novel, result


def test_no_name_of_a_client_is_left() -> None:
    named = replace(clients([80.0, 90.0]), names=("secret 1", "secret 2"))
    late = novel([70.0, 75.0])
    late = replace(late, clients=replace(late.clients, names=("secret 3", "secret 4")))
    base = result()
    found = replace(
        base,
        per_client=named,
        novel=late,
        majority=Baseline(base.accuracy, per_client=named, novel=late),
        rules={"prior": RuleFigures(base.accuracy, per_client=named)},
    )
    assert json.dumps(found.to_json()).count("secret") == 10
    (bare,) = without_names([found])
    assert "secret" not in json.dumps(bare.to_json())
    assert bare.accuracy == found.accuracy
    # What has none is as it was.
    assert without_names([base]) == [base]
