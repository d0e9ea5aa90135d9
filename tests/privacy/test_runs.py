"""A private run to its end: the sheet is in its folder, on its page, and in its result."""

from pathlib import Path

import masquerade as mq
from masquerade.laws.toy import federation, network
from masquerade.report import privacy
from masquerade.results import Leaving, PrivacySheet
from masquerade.results.privacy import UP


def test_a_private_run_says_what_it_guarantees_wherever_it_is_read(tmp_path: Path, plain_pages):
    asked = mq.Privacy(unit="sample", noise_multiplier=2.0, delta=1e-3)
    found = mq.run(
        mq.methods.FedAvg(local_epochs=1),
        network(),
        federation(),
        rounds=2,
        batch_size=2,
        views=["global"],
        privacy=asked,
        evaluate=mq.Evaluate(every=0, degrees=(0,)),
        out=tmp_path / "run",
        progress=False,
    )
    sheet = found.privacy
    assert sheet is not None
    made = sheet.guarantee
    assert made is not None
    assert 0 < max(made.clients.values()) == made.epsilon
    assert {line.epsilon for line in sheet.lines if line.name == "params"} == {made.epsilon}
    assert {line.epsilon for line in sheet.lines if line.name in ("facts", "figures")} == {None}
    assert mq.load_result(tmp_path / "run").privacy == sheet
    assert sheet.epsilon in (tmp_path / "run" / "report.html").read_text("utf-8")
    assert sheet.epsilon in privacy.line([sheet])
    assert sheet.epsilon in privacy.markdown([sheet])


def test_a_line_tells_trainings_apart_that_differ_alone() -> None:
    def sheet(title: str, seed: int, *kinds: str) -> PrivacySheet:
        lines = (Leaving("round", UP, "params", dict.fromkeys(kinds, ()), 1),)
        return PrivacySheet(title, seed, 4, lines)

    dense = [sheet(title, seed, "weights") for title in ("A", "B") for seed in (1, 2)]
    what = "left clients; differential privacy: none"
    assert privacy.line(dense) == f"weights {what}"
    sparse = [sheet("C", 1, "weights", "mask"), sheet("C", 2, "weights")]
    assert privacy.line([*dense, *sparse]).splitlines() == [
        f"A, B, C (seed 2): weights {what}",
        f"C (seed 1): weights, mask {what}",
    ]
